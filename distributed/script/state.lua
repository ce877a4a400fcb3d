-- state.lua: where things lie in a state, reading it, and its clock. Units: µs.
--
--   "thr3 ", the plan as text, "\n" | the capacity of each ring | the rings of logs | body
--
-- The body is a head of fixed size, the units on their way and the words of each
-- tier (so far the front, whose size the plan tells), and then the queues: groups
-- of each tier, slots, pool, leases, readings, whose lengths the front tells. A state with
-- rings is as long from its first day as it may become, because Redis doubles a
-- string that grows; what lies behind its body means nothing.

local FORMAT = '>I7I7I7I7I3I7I4I1I7I2I1I2I1I7' -- now, wall, generation, frontier, crowd, pause,
-- epoch, flags, exact, the numbers of slots, of the pool's entries, of leases and of
-- readings: one of each tier or none; and ban
local HEAD = 63 -- bytes of that
local HEADS = {['1'] = 55, ['2'] = 56, ['3'] = HEAD} -- by format: 1 had no readings, 2 no ban of its own
local READING = 16 -- numbers of a reading, see reading.lua

local now, wall -- the virtual clock, and TIME, as of this call
local generation -- TIME at which this state began
local pause, epoch -- the end of the longest pause or ban, and how many there were
local ban -- the end of the longest ban, no later than that
local flags -- 1: in formats 1 and 2, it is a ban, 2: someone waits for a place, 4: when it ends one request goes first,
-- 8: that has gone, and the pause is for its response
local exact -- when the request was admitted whose response last told the truth

local function hasGroups(algorithm) return algorithm == WINDOW or algorithm == ANCHORED end
local function isBucket(algorithm) return algorithm >= 5 and algorithm <= 7 end

-- The size of a plan's front, and the limits of its logs.
local function sizes(p, wordsOf, head)
  local words, logs = p[3], {}
  for t = 5 + p[3], #p, 6 do
    words = words + wordsOf[p[t]]
    if p[t] == LOG then logs[#logs + 1] = p[t + 2] end
  end
  return head + 7 * words, logs
end

local start = 'thr3 ' .. planText .. '\n'
local front, logs = sizes(plan, WORDS, HEAD)
local ringsAt = #start + 7 * #logs -- from 0, as Redis counts
local capacities -- of the rings
local bodyAt
local clock = redis.call('TIME')
wall = clock[1] * 1000000 + clock[2]

local raw = #logs > 0 and redis.call('GETRANGE', key, '0', text(ringsAt - 1))
if not raw or string.sub(raw, 1, #start) ~= start then raw = redis.call('GET', key) end

-- The capacities that a state tells at a place, and how many bytes the rings take;
-- nil if that can't be.
local function ringsIn(raw, at, logs)
  if #raw < at + 7 * #logs - 1 then return nil end
  local list, size = {}, 0
  for i = 1, #logs do
    list[i] = parse('>I7', raw, at + 7 * (i - 1))
    if list[i] < logs[i] then return nil end
    size = size + 7 * list[i]
  end
  return list, size
end

local body -- where in state it begins
local old, oldRings -- the plan that the state was kept for, if that was another or the format was
local wordsOf, head = WORDS, HEAD -- of the format of the state
local expected, size = front, 0 -- of what is in the state
if not raw then
  state, body = pack(FORMAT, 0, wall, wall, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) .. string.rep('\0', front - HEAD), 1
  image, capacities = start, logs
  for i = 1, #logs do image = image .. pack('>I7', logs[i]) end
  for i = 1, #logs do image = image .. string.rep('\0', 7 * logs[i]) end
elseif string.find(raw, start, 1, true) == 1 then
  capacities, size = ringsIn(raw, #start + 1, logs)
  if not capacities then return redis.error_reply('THROTTLE corrupt state: its logs are too short') end
  bodyAt = ringsAt + size
  if #logs > 0 then
    state, body = redis.call('GETRANGE', key, text(bodyAt), text(bodyAt + front + 255)), 1
  else
    state, body, image = raw, bodyAt + 1, start
  end
else
  local version = string.match(raw, '^thr(%d+) ')
  if not version then return redis.error_reply('THROTTLE foreign value: another program uses this key') end
  head = HEADS[version]
  if version == '1' then wordsOf = FIRST end
  if not head then
    return redis.error_reply('THROTTLE version ' .. version .. ' of the state is not known')
  end
  local words, after = string.match(raw, '^thr%d ([%d ]*)\n()')
  if not words then return redis.error_reply('THROTTLE corrupt state: it ends too soon') end
  old = {}
  for n in string.gmatch(words, '%d+') do old[#old + 1] = tonumber(n) end
  local sound = old[4] and #old == 4 + old[3] + 6 * old[4]
  for t = sound and 5 + old[3] or 1, sound and #old or 0, 6 do
    if not WORDS[old[t]] or old[t + 1] >= old[3] then sound = false end
  end
  if not sound then return redis.error_reply('THROTTLE corrupt plan in the state') end
  local oldLogs
  expected, oldLogs = sizes(old, wordsOf, head)
  capacities, size = ringsIn(raw, after, oldLogs)
  if not capacities then return redis.error_reply('THROTTLE corrupt state: its logs are too short') end
  oldRings = after + 7 * #oldLogs
  state, body = raw, oldRings + size
end

local have = #state - body + 1
if have < expected then return redis.error_reply('THROTTLE corrupt state: it ends too soon') end
local before, slotCount, poolCount, leaseCount, readingCount
now, before, generation, frontier, crowd, pause, epoch, flags, exact, slotCount, poolCount, leaseCount, readingCount, ban =
  parse(head == HEAD and FORMAT or string.sub(FORMAT, 1, head == 56 and -3 or -5), state, body)
if head < 56 then readingCount = 0 end
if head < HEAD then ban = flags % 2 == 1 and pause or 0 end

local kept = old or plan
local numbers = (1 + kept[3]) * (slotCount + poolCount) + (3 + kept[3]) * leaseCount + (head == HEAD and READING or 14) * readingCount
local place, log = body + head + 7 * kept[3], 0 -- where the words of the next tier are
for t = 5 + kept[3], #kept, 6 do
  if hasGroups(kept[t]) then
    numbers = numbers + 2 * parse('>I7', state, place + 7)
  elseif kept[t] == LOG then
    local length, next = parse('>I7I7', state, place)
    log = log + 1
    if length > capacities[log] or next >= capacities[log] then numbers = NEVER end
  end
  place = place + 7 * wordsOf[kept[t]]
end
expected = expected + 7 * numbers
if have < expected and not image and not old and expected < NEVER then
  state = redis.call('GETRANGE', key, text(bodyAt), text(bodyAt + expected - 1))
  have = #state
end
if have < expected or have > expected and size == 0 then
  return redis.error_reply('THROTTLE corrupt state: its size is not what it says')
end
if head < HEAD then readingCount = 0 end -- reports of a format before are forgotten

-- The virtual clock goes on as TIME does, and stands still when that steps back.
if wall > before then now = now + wall - before end
drift = wall - now
