-- Begin of every script of the directory: removes invalid tables, and counts them in `removed`.
-- KEYS: alive, publishers, descriptions, states, version.
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
