-- Removes invalid values, and all sessions if there was one: every publisher then rewrites its part.
-- KEYS: epochs, sessions, incomplete holders, keys that a query found to be invalid. Returns the number of values removed.
local removed = 0
local function remove(key)
  redis.call('DEL', key)
  removed = removed + 1
end
local function is_of_other_type(result)
  if type(result) ~= 'table' or not result.err then return false end
  if not string.find(result.err, 'WRONGTYPE', 1, true) then error(result.err, 0) end
  return true
end
local is_table = {}
local function clean(key, is_valid)
  is_table[key] = true
  local all = redis.pcall('HGETALL', key)
  if is_of_other_type(all) then return remove(key) end
  for i = 1, #all, 2 do
    if #all[i] ~= 8 or not is_valid(all[i + 1]) then
      redis.call('HDEL', key, all[i])
      removed = removed + 1
    end
  end
end
clean(KEYS[1], function(epoch) return #epoch == 17 end)
clean(KEYS[2], function(session) return string.match(session, '^%d+ %d+$') end)
clean(KEYS[3], tonumber)
for i = 4, #KEYS do
  if not is_table[KEYS[i]] then
    local value = redis.pcall('GET', KEYS[i])
    if is_of_other_type(value) or (value and (#value == 0 or #value % 9 ~= 0)) then remove(KEYS[i]) end
  end
end
if removed > 0 then redis.call('DEL', KEYS[2]) end
return removed
