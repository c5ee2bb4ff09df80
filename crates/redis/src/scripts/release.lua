-- Removes ranks of this publisher from the directory.
-- KEYS: alive, publishers, descriptions, states, version. ARGV: publisher, holders.
-- A table of another type is invalid. The tables depend on each other, so all are removed; publishers write them
-- again.
local removed = 0
for at, command in ipairs({ 'ZSCORE', 'HEXISTS', 'HEXISTS', 'HEXISTS', 'GET' }) do
  local result = at == 5 and redis.pcall(command, KEYS[at]) or at < 5 and redis.pcall(command, KEYS[at], '')
  if type(result) == 'table' and result.err then
    if not string.find(result.err, 'WRONGTYPE', 1, true) then error(result.err, 0) end
    removed = removed + 1
  end
end
if removed > 0 then
  for at = 1, 5 do redis.call('DEL', KEYS[at]) end
end
local is_changed = false
for i = 2, #ARGV do
  if redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[1] then
    redis.call('ZREM', KEYS[1], ARGV[i])
    for key = 2, 4 do redis.call('HDEL', KEYS[key], ARGV[i]) end
    is_changed = true
  end
end
if is_changed then
  local time = redis.call('TIME')
  redis.call('SET', KEYS[5], time[1] .. '.' .. time[2])
end
return 1
