-- peek.lua: reads the pause in a state, for a process that has received a message. It is a script
-- of its own, and not part of the library. It decides nothing and writes nothing. Units: µs. Go:
-- peek.go. The layout is in state.lua.
--
-- KEYS[1]  the quota
-- Reply    the header of main.lua's, without an expiry and the 4 for several releases; zeros if there is no state of format 3 to 6,
--          which begin alike; and of format 6 the named limits with their numbers, see plan.lua

local raw = redis.call('GETRANGE', KEYS[1], '0', '8191')
local words, named, guests, at = string.match(raw, '^thr[3456] ([%d ]*)=?([%d ]*)([%d +]*)\n()')
if not words then return {0, 0, 0, 0, 0, 0, 0, 0} end

-- The number in width bytes.
local function number(s, first, width)
  local n = 0
  for i = first, first + width - 1 do n = n * 256 + string.byte(s, i) end
  return n
end

local body, units, width = at, 3, 6 -- the index of the number of units in a plan, and the numbers of a tier
for part in string.gmatch(words .. guests, '[%d ]+') do
  local list = {}
  for n in string.gmatch(part, '%d+') do list[#list + 1] = tonumber(n) end
  for t = units + 2 + list[units], #list, width do
    if list[t] == 0 then -- a log: the rings follow the capacities of all logs
      body, at = body + 7 + 7 * number(raw, at, 7), at + 7
    end
  end
  units, width = 1, 7 -- of the guest tiers
end
local head = string.sub(raw, body, body + 62)
if #head < 63 then
  head = redis.call('GETRANGE', KEYS[1], string.format('%.0f', body - 1), string.format('%.0f', body + 61))
end
local written, before, generation = number(head, 1, 7), number(head, 8, 7), number(head, 15, 7)
local pause, epoch, ban = number(head, 32, 7), number(head, 39, 4), number(head, 57, 7)
local clock = redis.call('TIME')
local wall = clock[1] * 1000000 + clock[2]
local now = written + math.max(0, wall - before)
local reply = {now, generation, 0, epoch, 0, 0, wall, written}
if pause > now then reply[5] = pause end
if ban > now then reply[5], reply[6] = ban, 1 end
for n in string.gmatch(named, '%d+') do reply[#reply + 1] = tonumber(n) end
reply[6] = reply[6] + 8 * math.floor(number(head, 43, 1) / 16)
if math.tointeger then -- servers with Lua 5.4 would reply 3.0 for 3
  for i = 1, #reply do reply[i] = math.tointeger(reply[i]) end
end
return reply
