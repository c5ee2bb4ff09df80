-- Says that a publisher lives and wants to publish these holders.
-- KEYS: alive, publishers, descriptions, states, version.
-- ARGV: publisher, milliseconds that it is believed, then for each holder its id, description and state.
-- Answers how many tables were none of ours and removed, then a number for each holder: 1 if this publisher is to publish it, 0 if another one does.
-- A table of another type is none of ours. Without one of them the others make no sense: publishers write all again.
local removed = 0
for at, command in ipairs({ 'ZSCORE', 'HEXISTS', 'HEXISTS', 'HEXISTS', 'GET' }) do
  local answer = at == 5 and redis.pcall(command, KEYS[at]) or at < 5 and redis.pcall(command, KEYS[at], '')
  if type(answer) == 'table' and answer.err then
    if not string.find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
    removed = removed + 1
  end
end
if removed > 0 then
  for at = 1, 5 do redis.call('DEL', KEYS[at]) end
end
local alive, publishers, descriptions, states, version = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local mine, is_changed = { removed }, false
for i = 3, #ARGV, 3 do
  local holder = ARGV[i]
  local publisher = redis.call('HGET', publishers, holder)
  local believed = redis.call('ZSCORE', alive, holder)
  if publisher and publisher ~= ARGV[1] and believed and tonumber(believed) > now then
    mine[#mine + 1] = 0
  else
    redis.call('ZADD', alive, string.format('%d', now + ARGV[2]), holder)
    redis.call('HSET', states, holder, ARGV[i + 2])
    if publisher ~= ARGV[1] or redis.call('HGET', descriptions, holder) ~= ARGV[i + 1] then
      redis.call('HSET', publishers, holder, ARGV[1])
      redis.call('HSET', descriptions, holder, ARGV[i + 1])
      is_changed = true
    end
    mine[#mine + 1] = 1
  end
end
if is_changed then redis.call('SET', version, time[1] .. '.' .. time[2]) end
return mine
