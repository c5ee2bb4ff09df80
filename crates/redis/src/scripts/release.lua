-- Removes ranks of this publisher from the directory.
-- KEYS: alive, publishers, descriptions, states, version. ARGV: publisher, holders.
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
