-- Writes one batch of a session, if the session is here as its publisher believes.
-- KEYS: lives, sessions.
-- ARGV: 1 session, 2 and 3 lowest and highest number that its last batch may have (0 0 starts the session), 4 this
--   batch's number, 5 until when the session is valid, in milliseconds of this node's clock (0 leaves that as it is),
--   6 milliseconds that blocks are kept, 7 milliseconds after which a session that is not valid is forgotten,
--   8 beginning of block keys, 9 a session to end, 10 lives that start (8 bytes life, 8 holder),
--   11 lives of which all is written now, 12 lives that end,
--   13 changes (8 bytes end of key, 8 life, 1 tier or 255), 14 '1' to drop what dead lives left there.
-- Answers this node's clock in milliseconds, or 0 if the session is not here so. Where it finds values that are none of
-- ours it removes them and all sessions, so that every publisher writes its part as a whole, and answers how many they
-- were, as a negative number.
local lives, sessions = KEYS[1], KEYS[2]
local session, low, high, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local keep_ms = ARGV[6]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local removed = 0
local function remove(key)
  redis.call('DEL', key)
  removed = removed + 1
end
-- The answer of a command; false, and the key is removed, if it holds another type.
local function read(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' and answer.err then
    if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
    remove(key)
    return false
  end
  return answer
end
read('HEXISTS', lives, '')
local told = read('HGET', sessions, session)
if removed > 0 then
  redis.call('DEL', sessions)
  return -removed
end
-- A session that begins is not valid yet, and not to be forgotten either.
local valid_until = string.format('%d', now)
if high > 0 then
  if not told then return 0 end
  local last, told_until = string.match(told, '^(%d+) (%d+)$')
  if not last then
    redis.call('DEL', sessions)
    return -1
  end
  last = tonumber(last)
  -- A client that lost the answer sends the same again.
  if last ~= number and (last < low or last > high) then return 0 end
  valid_until = told_until
end

local function of_session(wanted)
  local all, found = redis.call('HGETALL', lives), {}
  for i = 1, #all, 2 do
    if string.sub(all[i + 1], 9, 16) == wanted then found[#found + 1] = all[i] end
  end
  return found
end
local function forget(ended)
  redis.call('HDEL', sessions, ended)
  for _, life in ipairs(of_session(ended)) do redis.call('HDEL', lives, life) end
end

if ARGV[9] ~= '' then forget(ARGV[9]) end
local ending, starting, whole = ARGV[12], ARGV[10], ARGV[11]
for at = 1, #ending, 8 do redis.call('HDEL', lives, string.sub(ending, at, at + 7)) end
for at = 1, #starting, 16 do
  redis.call('HSETNX', lives, string.sub(starting, at, at + 7), string.sub(starting, at + 8, at + 15) .. session .. '\0')
end

local function find(entries, life)
  local at = 1
  while true do
    at = string.find(entries, life, at, true)
    if not at or at % 9 == 1 then return at end
    at = at + 1
  end
end
local function without_dead(entries)
  local kept = {}
  for at = 1, #entries, 9 do
    if redis.call('HEXISTS', lives, string.sub(entries, at, at + 7)) == 1 then
      kept[#kept + 1] = string.sub(entries, at, at + 8)
    end
  end
  return table.concat(kept)
end

local beginning, changes, is_cleaning = ARGV[8], ARGV[13], ARGV[14] == '1'
for i = 1, #changes, 17 do
  local key = beginning .. string.sub(changes, i, i + 7)
  local life = string.sub(changes, i + 8, i + 15)
  local tier = string.sub(changes, i + 16, i + 16)
  local old = read('GET', key) or ''
  if #old % 9 ~= 0 then
    remove(key)
    old = ''
  end
  local entries = old
  if is_cleaning then entries = without_dead(entries) end
  local at = find(entries, life)
  if tier == '\255' then
    if at then entries = string.sub(entries, 1, at - 1) .. string.sub(entries, at + 9) end
  elseif not at then
    entries = entries .. life .. tier
  elseif string.sub(entries, at + 8, at + 8) ~= tier then
    entries = string.sub(entries, 1, at + 7) .. tier .. string.sub(entries, at + 9)
  end
  if entries == '' then
    if old ~= '' then redis.call('DEL', key) end
  elseif entries ~= old or tier ~= '\255' then
    redis.call('SET', key, entries, 'PX', keep_ms)
  end
end

if removed > 0 then
  redis.call('DEL', sessions)
  return -removed
end
for at = 1, #whole, 8 do
  local life = string.sub(whole, at, at + 7)
  local value = redis.call('HGET', lives, life)
  if value then redis.call('HSET', lives, life, string.sub(value, 1, 16) .. '\1') end
end
if ARGV[5] ~= '0' then
  valid_until = ARGV[5]
  local all = redis.call('HGETALL', sessions)
  for i = 1, #all, 2 do
    local other = string.match(all[i + 1], '^%d+ (%d+)$')
    if all[i] ~= session and (not other or tonumber(other) + tonumber(ARGV[7]) < now) then forget(all[i]) end
  end
end
redis.call('HSET', sessions, session, ARGV[4] .. ' ' .. valid_until)
redis.call('PEXPIRE', sessions, keep_ms)
redis.call('PEXPIRE', lives, keep_ms)
return now
