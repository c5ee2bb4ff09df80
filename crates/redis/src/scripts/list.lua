-- The list of holders, without those of publishers that are not believed any more.
-- KEYS: alive, publishers, descriptions, states, version. ARGV: the version that the caller has.
-- Answers { version, states }, and publishers and descriptions if the version is another; each as a flat list.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now), 'LIMIT', 0, 256)
for _, holder in ipairs(gone) do
  redis.call('ZREM', KEYS[1], holder)
  for key = 2, 4 do redis.call('HDEL', KEYS[key], holder) end
end
if #gone > 0 then redis.call('SET', KEYS[5], time[1] .. '.' .. time[2]) end
local version = redis.call('GET', KEYS[5]) or ''
local states = redis.call('HGETALL', KEYS[4])
if version == ARGV[1] then return { version, states } end
return { version, states, redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]) }
