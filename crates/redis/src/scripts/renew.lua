-- Renews a publisher's leases of ranks, and acquires free ones.
-- KEYS: alive, publishers, descriptions, states, version.
-- ARGV: publisher, end of the leases in milliseconds of this node's clock (0 if the entries are not confirmed), longest
-- duration of a lease in milliseconds, then id, description, state and unfinished state of each rank. The unfinished
-- state is listed if the entries are not confirmed or may have expired by now.
-- Returns the number of invalid tables removed, this node's clock in milliseconds, then for each rank 1 if this
-- publisher has its lease and 0 if another one has.
local alive, publishers, descriptions, states, version = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local granted, is_changed = { removed, now }, false
local is_confirmed = tonumber(ARGV[2]) > now
local lease_end = now + ARGV[3]
if is_confirmed then lease_end = math.min(lease_end, tonumber(ARGV[2])) end
for i = 4, #ARGV, 4 do
  local holder = ARGV[i]
  local publisher = redis.call('HGET', publishers, holder)
  local lease_until = redis.call('ZSCORE', alive, holder)
  if publisher and publisher ~= ARGV[1] and lease_until and tonumber(lease_until) > now then
    granted[#granted + 1] = 0
  else
    redis.call('ZADD', alive, string.format('%d', lease_end), holder)
    redis.call('HSET', states, holder, is_confirmed and ARGV[i + 2] or ARGV[i + 3])
    if publisher ~= ARGV[1] or redis.call('HGET', descriptions, holder) ~= ARGV[i + 1] then
      redis.call('HSET', publishers, holder, ARGV[1])
      redis.call('HSET', descriptions, holder, ARGV[i + 1])
      is_changed = true
    end
    granted[#granted + 1] = 1
  end
end
-- A replica that has read nothing has the version of a directory without one.
if is_changed or not redis.call('GET', version) then redis.call('SET', version, time[1] .. '.' .. time[2]) end
return granted
