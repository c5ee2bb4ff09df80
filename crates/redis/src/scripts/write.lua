-- Writes one batch of a session, if the session is in the state that its publisher expects.
-- KEYS: epochs, sessions, incomplete holders.
-- ARGV: 1 session; 2, 3 lowest and highest number that its last batch may have (0 0 starts the session); 4 number of
-- this batch; 5 end of the session's validity in milliseconds of this node's clock (0 leaves it unchanged);
-- 6 retention of blocks in milliseconds; 7 milliseconds after which an expired session is removed;
-- 8 first part of the block keys; 9 a session to end; 10 epochs to start (8 bytes epoch, 8 holder);
-- 11 epochs that are completely written now; 12 epochs to end (8 bytes epoch, 8 its holder, which is incomplete from now
-- on, or zeros);
-- 13 changes (8 bytes last part of the key, 8 epoch, 1 tier or 255); 14 '1' to remove entries of dead epochs;
-- 15 milliseconds for which a holder is incomplete: by then no replica lists it as completely written.
-- Returns this node's clock in milliseconds, or 0 if the session is in another state. Invalid values are removed
-- together with all sessions, so that every publisher rewrites its part; the result is then their negative number.
local epochs, sessions, incomplete = KEYS[1], KEYS[2], KEYS[3]
local session, low, high, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local retention_ms = ARGV[6]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local removed = 0
local function remove(key)
  redis.call('DEL', key)
  removed = removed + 1
end
-- The result of a command; false if the key has another type, which is then removed.
local function read(command, key, ...)
  local result = redis.pcall(command, key, ...)
  if type(result) == 'table' and result.err then
    if not string.find(result.err, 'WRONGTYPE', 1, true) then error(result.err, 0) end
    remove(key)
    return false
  end
  return result
end
read('HEXISTS', epochs, '')
read('HEXISTS', incomplete, '')
local record = read('HGET', sessions, session)
if removed > 0 then
  redis.call('DEL', sessions)
  return -removed
end
-- A new session is not valid yet, and must not be removed as expired.
local valid_until = string.format('%d', now)
if high > 0 then
  -- The epochs may be evicted alone: their table has a field for each session.
  if not record or redis.call('HEXISTS', epochs, session) == 0 then return 0 end
  local last, recorded_until = string.match(record, '^(%d+) (%d+)$')
  if not last then
    redis.call('DEL', sessions)
    return -1
  end
  last = tonumber(last)
  -- A client that lost the response sends the same batch again.
  if last ~= number and (last < low or last > high) then return 0 end
  valid_until = recorded_until
else
  redis.call('HSET', epochs, session, string.rep('\0', 8) .. session .. '\0')
end

local function of_session(wanted)
  local all, found = redis.call('HGETALL', epochs), {}
  for i = 1, #all, 2 do
    if string.sub(all[i + 1], 9, 16) == wanted then found[#found + 1] = all[i] end
  end
  return found
end
local function end_session(ended)
  redis.call('HDEL', sessions, ended)
  for _, epoch in ipairs(of_session(ended)) do redis.call('HDEL', epochs, epoch) end
end

if ARGV[9] ~= '' then end_session(ARGV[9]) end
local ending, starting, whole = ARGV[12], ARGV[10], ARGV[11]
local incomplete_until = string.format('%d', now + ARGV[15])
for at = 1, #ending, 16 do
  redis.call('HDEL', epochs, string.sub(ending, at, at + 7))
  local holder = string.sub(ending, at + 8, at + 15)
  if holder ~= string.rep('\0', 8) then redis.call('HSET', incomplete, holder, incomplete_until) end
end
if ending ~= '' then redis.call('PEXPIRE', incomplete, ARGV[15]) end
for at = 1, #starting, 16 do
  redis.call('HSETNX', epochs, string.sub(starting, at, at + 7), string.sub(starting, at + 8, at + 15) .. session .. '\0')
end

local function find(entries, epoch)
  local at = 1
  while true do
    at = string.find(entries, epoch, at, true)
    if not at or at % 9 == 1 then return at end
    at = at + 1
  end
end
local function without_dead(entries)
  local kept = {}
  for at = 1, #entries, 9 do
    if redis.call('HEXISTS', epochs, string.sub(entries, at, at + 7)) == 1 then
      kept[#kept + 1] = string.sub(entries, at, at + 8)
    end
  end
  return table.concat(kept)
end

local beginning, changes, is_cleaning = ARGV[8], ARGV[13], ARGV[14] == '1'
for i = 1, #changes, 17 do
  local key = beginning .. string.sub(changes, i, i + 7)
  local epoch = string.sub(changes, i + 8, i + 15)
  local tier = string.sub(changes, i + 16, i + 16)
  local old = read('GET', key) or ''
  if #old % 9 ~= 0 then
    remove(key)
    old = ''
  end
  local entries = old
  if is_cleaning then entries = without_dead(entries) end
  local at = find(entries, epoch)
  if tier == '\255' then
    if at then entries = string.sub(entries, 1, at - 1) .. string.sub(entries, at + 9) end
  elseif not at then
    entries = entries .. epoch .. tier
  elseif string.sub(entries, at + 8, at + 8) ~= tier then
    entries = string.sub(entries, 1, at + 7) .. tier .. string.sub(entries, at + 9)
  end
  if entries == '' then
    if old ~= '' then redis.call('DEL', key) end
  elseif entries ~= old or tier ~= '\255' then
    redis.call('SET', key, entries, 'PX', retention_ms)
  end
end

if removed > 0 then
  redis.call('DEL', sessions)
  return -removed
end
for at = 1, #whole, 8 do
  local epoch = string.sub(whole, at, at + 7)
  local value = redis.call('HGET', epochs, epoch)
  if value then
    redis.call('HSET', epochs, epoch, string.sub(value, 1, 16) .. '\1')
    redis.call('HDEL', incomplete, string.sub(value, 1, 8))
  end
end
if ARGV[5] ~= '0' then
  valid_until = ARGV[5]
  local all = redis.call('HGETALL', sessions)
  for i = 1, #all, 2 do
    local other = string.match(all[i + 1], '^%d+ (%d+)$')
    if all[i] ~= session and (not other or tonumber(other) + tonumber(ARGV[7]) < now) then end_session(all[i]) end
  end
  local ended = redis.call('HGETALL', incomplete)
  for i = 1, #ended, 2 do
    if (tonumber(ended[i + 1]) or 0) <= now then redis.call('HDEL', incomplete, ended[i]) end
  end
end
redis.call('HSET', sessions, session, ARGV[4] .. ' ' .. valid_until)
redis.call('PEXPIRE', sessions, retention_ms)
redis.call('PEXPIRE', epochs, retention_ms)
return now
