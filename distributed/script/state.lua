-- state.lua: the layout of a state, and how a call reads it. Units: µs.
-- Uses: convert.lua, fixedwindow.lua, flight.lua, line.lua, pack.lua, plan.lua, pool.lua, queue.lua, rule.lua,
-- slidinglog.lua, turn.lua.
-- Gives: the locals below, sizes, ringFor, setImage, isLater, readState.
-- Sets: atFrontier, bundledUntil, delayedEnd, drift, frontier, image, lineEnd, lineFront, lineOpen, lineUntil, mixedPace,
-- mixedUntil, oldEnd, openTurns, promised, promisedOld, state, turnsEnd, usedAlone.
--
--   "thr5 ", or "thr6 " if tiers follow what responses name, the plan as text, "\n" | the capacity of each ring | the rings of logs | body
--
-- The body begins with the front: a head of fixed size, the amounts in flight and the words of each
-- tier. The plan determines the size of the front. The queues follow: groups of each tier, slots,
-- pool, leases, readings, tail. The front contains their lengths. A state with rings has a reserve
-- behind its body, because Redis doubles a string that grows; the bytes there have no meaning. When
-- a ring grows, the whole state is written anew.

local FORMAT = '>I7I7I7I7I3I7I4I1I7I2I1I2I1I7' -- now, wall, generation, frontier, atFrontier plus MOST_AT_FRONTIER times the runs of the tail, pause,
-- epoch, flags, exact, the numbers of slots, of the pool's entries, of leases (since format 4 of
-- their sums, one or none) and of readings: one for each tier or none; and ban. Frontier,
-- atFrontier, slots and the words of tiers exclude the tail.
local HEAD = 63 -- the bytes of the head
local MOST_AT_FRONTIER = 2 ^ 16 -- atFrontier is saved modulo this
local SUMS = 8 -- numbers of the sums of leases before the amounts, see lease.lua
local WITH_ESTIMATES = 2 ^ 52 -- added to the sum of an amount that contains estimates
local TURNS = 13 -- numbers about turns, and about several releases
local RUN = 4 -- numbers of a run of the tail before the cost, see tail.lua
local READING = 18 -- numbers of a reading, see reading.lua
local RING = 32 -- stamps of a new ring

local body -- where the body begins in the loaded bytes
local ringsAt, bodyAt -- where rings and body begin in the value of the key, from 0 as the server counts
local capacities -- of the rings
local now, wall -- the virtual clock, and TIME, at this call
local setBack -- whether TIME is before TIME at the previous call
local written -- the virtual clock at the previous call that wrote the state
local generation -- TIME at which this state began
local pause, epoch -- the end of the longest pause or ban, and the number of the last event
local ban -- the end of the longest ban, no later than pause
local flags -- 1: in formats 1 and 2, the pause is a ban; in format 4, the numbers about turns follow. 2: usedAlone. 4: one request goes first after the pause,
-- 8: that request has gone, and the pause lasts until its response, 16 for each back-off in a row
local exact -- when the request with the last authoritative reading was admitted
local lengths -- of the queues; and drift at the previous call, which differs if TIME has stepped back since

-- The size of a plan's front, and the limits of its logs.
local function sizes(p, wordsOf, head)
  local words, logs = p[3], {}
  for t = 5 + p[3], #p, 6 do
    words = words + wordsOf[p[t]]
    if p[t] == LOG then logs[#logs + 1] = p[t + 2] end
  end
  return head + 7 * words, logs
end

-- The capacities of the rings of a state, and the size of the rings in bytes; nil if they are not
-- valid.
local function ringsIn(raw, at, logs)
  if #raw < at + 7 * #logs - 1 then return nil end
  local list, size = {}, 0
  for i = 1, #logs do
    list[i] = parse('>I7', raw, at + 7 * (i - 1))
    if list[i] < logs[i] then
      local doubled = 1 -- a ring that still grows has a power of two of stamps
      while doubled < list[i] do doubled = 2 * doubled end
      if list[i] ~= doubled then return nil end
    end
    size = size + 7 * list[i]
  end
  return list, size
end

-- Makes save write the whole state, with these rings.
local function setImage(rings)
  local sizes = {}
  for i = 1, #capacities do sizes[i] = pack('>I7', capacities[i]) end
  ringsAt = #plan.start + 7 * #capacities
  image = plan.start .. concat(sizes) .. concat(rings)
end

-- The capacity of a ring for a number of stamps, at most the limit.
local function ringFor(stamps, limit)
  local size = RING
  while size < stamps do size = 2 * size end
  return min(size, limit)
end

-- Begins a new state.
local function begin(logs)
  state, body = pack(FORMAT, 0, wall, wall, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) .. rep('\0', plan.front - HEAD), 1
  local rings = {}
  capacities = {}
  for i = 1, #logs do
    capacities[i] = ringFor(0, logs[i])
    rings[i] = rep('\0', 7 * capacities[i])
  end
  setImage(rings)
end

-- Describes a state of another plan or format: the plan, the words of its tiers, the size of its
-- head, how many numbers an entry of its pool and of its leases has before the amounts, its logs,
-- where their rings begin, and (matches) whether it is the caller's plan with guest tiers that are
-- all still kept. Returns nil and the problem if the state is not valid.
local function oldIn(raw)
  local HEADS = {['1'] = 55, ['2'] = 56, ['3'] = HEAD, ['4'] = HEAD, ['5'] = HEAD, ['6'] = HEAD} -- by format: 1 had no readings, 2 no ban of its own, 3 no guards in the pool, no turns and no tail, 4 no line
  local FIRST = {[0] = 3, 2, 3, 2, 4, 2, 2, 2, 0, 3, 7} -- and did in a state of format 1
  local version = string.match(raw, '^thr(%d+) ')
  if not version then return nil, 'foreign value: another program uses this key' end
  if not HEADS[version] then return nil, 'version ' .. version .. ' of the state is not known' end
  local words, after = string.match(raw, '^thr%d ([%d =+]*)\n()')
  if not words then return nil, 'corrupt state: it ends too soon' end
  local p, problem = plans[words], nil
  if not p then p, problem = listOf(words) end
  if not p then return nil, problem or 'corrupt plan in the state' end
  setNamed(p, words)
  if (p.policy ~= nil) ~= (version == '6') then return nil, 'corrupt plan in the state' end
  local old = {words = words, current = version >= '4', plan = p, wordsOf = version == '1' and FIRST or WORDS, head = HEADS[version], poolNumbers = version < '4' and 1 or POOLED,
    leaseNumbers = version < '4' and 3 or SUMS, readingNumbers = version < '3' and 14 or version == '3' and 16 or READING,
    turnNumbers = version < '5' and 8 or TURNS}
  old.front, old.logs = sizes(p, old.wordsOf, old.head)
  old.rings = after + 7 * #old.logs
  old.matches = sub(raw, 1, #plan.start) == sub(plan.start, 1, -2) .. '+'
  for i = 1, #p.ends do old.matches = old.matches and p.ends[i] > wall end
  return old
end

-- Whether a plan is that of another one's policy, with limits that responses have named later. Of limits
-- that were named at one instant, any may hold, as long as it is the same for all processes.
local function isLater(p, other)
  return p.policy ~= nil and p.policy == other.policy and (p.namedAt > other.namedAt or p.namedAt == other.namedAt and p.named > other.named)
end

-- Reads the state without its rings, and parses the head. Returns the problem, if there is one, and
-- the description of a state that has to be converted.
local function readState()
  local start, logs = plan.start, plan.logs
  local old, problem
  local size = 0 -- of the rings
  image, ringsAt, bodyAt = nil, #start + 7 * #logs, nil
  local raw = #logs > 0 and call('GETRANGE', key, '0', text(ringsAt - 1))
  if not raw or sub(raw, 1, #start) ~= start then
    if raw and sub(raw, #start, #start) == '+' then -- reading the whole value may take long
      old = oldIn(call('GETRANGE', key, '0', '8191'))
      if old and old.matches then return nil, old end
    end
    raw = call('GET', key)
  end
  if not raw then
    begin(logs)
  elseif sub(raw, 1, #start) == start then
    capacities, size = ringsIn(raw, #start + 1, logs)
    if not capacities then return 'corrupt state: its logs are too short' end
    bodyAt = ringsAt + size
    if #logs > 0 then
      state, body = call('GETRANGE', key, text(bodyAt), text(bodyAt + plan.front + 255)), 1
    else
      state, body, image = raw, bodyAt + 1, start
    end
  else
    old, problem = oldIn(raw)
    if problem then return problem end
    if old.matches then return nil, old end
    capacities, size = ringsIn(raw, old.rings - 7 * #old.logs, old.logs)
    if not capacities then return 'corrupt state: its logs are too short' end
    state, body = raw, old.rings + size
  end

  local kept, head, wordsOf = old and old.plan or plan, old and old.head or HEAD, old and old.wordsOf or WORDS
  local have = #state - body + 1
  if have < (old or plan).front then return 'corrupt state: it ends too soon' end
  local before
  lengths = {slots = 0, pool = 0, leases = 0, readings = 0, tail = 0, drift = 0}
  now, before, generation, frontier, atFrontier, pause, epoch, flags, exact, lengths.slots, lengths.pool, lengths.leases, lengths.readings, ban =
    parse(head == HEAD and FORMAT or sub(FORMAT, 1, head == 56 and -3 or -5), state, body)
  if atFrontier >= MOST_AT_FRONTIER and not (old and not old.current) then lengths.tail, atFrontier = divMod(atFrontier, MOST_AT_FRONTIER) end
  if head < 56 then lengths.readings = 0 end
  if head < HEAD then ban = flags % 2 == 1 and pause or 0 end
  local turns = (not old or old.current) and flags % 2 == 1 -- the ends of turns are the last numbers

  local poolNumbers, leaseNumbers = old and old.poolNumbers or POOLED, old and old.leaseNumbers or SUMS
  local numbers = (1 + kept[3]) * lengths.slots + (poolNumbers + kept[3]) * lengths.pool + (leaseNumbers + kept[3]) * lengths.leases
    + (old and old.readingNumbers or READING) * lengths.readings + (RUN + kept[3]) * lengths.tail
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
  local turnNumbers = turns and (old and old.turnNumbers or TURNS) or 0
  numbers = numbers + turnNumbers
  local expected = (old or plan).front + 7 * numbers
  if have < expected and not image and not old and expected < NEVER then
    state = call('GETRANGE', key, text(bodyAt), text(bodyAt + expected - 1))
    have = #state
  end
  if have < expected or have > expected and size == 0 then return 'corrupt state: its size is not what it says' end
  if head < HEAD then lengths.readings = 0 end -- readings of earlier formats are dropped
  turnsEnd, delayedEnd, openTurns, promised, promisedOld, oldEnd, mixedUntil, mixedPace, usedAlone = 0, 0, 0, 0, 0, 0, 0, 0, turns and flags % 4 >= 2
  if turns then
    turnsEnd, delayedEnd, openTurns, promised, promisedOld, oldEnd, mixedUntil, mixedPace, lineEnd, lineFront, lineOpen, lineUntil, bundledUntil = parse(sevens(turnNumbers), state, body + expected - 7 * turnNumbers)
  end
  if turnNumbers < TURNS then -- there is no line
    lineEnd, lineFront, lineOpen, lineUntil, bundledUntil = 0, 0, 0, 0, 0
  end

  -- The virtual clock advances with TIME, and stands still when TIME steps back.
  written, setBack = now, wall < before
  if not setBack then now = now + wall - before end
  lengths.drift, drift = before - written, wall - now
  return nil, old
end
