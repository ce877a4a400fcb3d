-- tiers.lua: the rules of the plan's tiers, and the queues of the state.
-- Twin: algorithms/plan.go.
-- Uses: calendar.lua, fixedwindow.lua, flight.lua, lease.lua, pack.lua, plan.lua, pool.lua, queue.lua, reading.lua,
-- rule.lua, state.lua, tail.lua.
-- Gives: planOf, adopt, loadTiers.
-- Sets: calendars, capacity, estimated, estimates, estimating, firstLanding, guard, inFlight, knownUntil,
-- leases, open, own, plan, planCount, plans, pool, readings, resolution, rules, slots, tail,
-- unitOf, units.

-- The plan of a text, with the first bytes of its state, the size of its front, the limits of its
-- logs, and the rule, the unit and the capacity of each tier. For a text with guest tiers the
-- caller passes the list too.
local function planOf(words, list)
  local p = plans[words]
  if p then return p end
  p = list or numbersIn(string.match(words, '^[%d ]*'))
  setNamed(p, words)
  p.ownUnits, p.deciding, p.ends = p.ownUnits or p[3], p.deciding or p[4], p.ends or {}
  p.start, p.rules, p.unitOf, p.capacity, p.estimated = (p.policy and 'thr6 ' or 'thr5 ') .. words .. '\n', {}, {}, {}, {}
  p.limited, p.holds = {}, {} -- by unit, whether a tier limits the open amount, and whether callers hold amounts
  p.front, p.logs = sizes(p, WORDS, HEAD)
  for u = 1, p[3] do
    p.estimated[u] = p[4 + u] >= ESTIMATE
    p.estimates, p.holds[u] = p.estimates or p.estimated[u], p.estimated[u]
  end
  for t = 5 + p[3], #p, 6 do
    local i = #p.rules + 1
    p.rules[i], p.unitOf[i] = ruleOf(p, t), p[t + 1] + 1
    p.capacity[i] = drains(p[t]) and p[t + 4] or p[t + 2]
    if p[t] == CONCURRENCY then
      local u = p[t + 1] + 1
      p.limited[u] = true
      if i <= p.deciding then p.concurrent, p.holds[u] = true, true end
    end
  end
  if planCount == MOST_PLANS then plans, planCount = {}, 0 end
  plans[words], planCount = p, planCount + 1
  return p
end

-- Makes a plan the current one.
local function adopt(p)
  plan, guard, resolution, units = p, p[1], 2 ^ p[2], p[3]
  rules, unitOf, capacity, estimates, estimated = p.rules, p.unitOf, p.capacity, p.estimates, p.estimated
  inFlight, open, own, readings, calendars, knownUntil, estimating = {}, {}, {}, {}, {}, NEVER, p.estimated
end

-- Reads the numbers of the tiers, and the queues. Returns the problem, if there is one. For a state
-- to be converted, foreign is true: the call has no periods for its calendar tiers.
local function loadTiers(foreign)
  local place, queues = body + HEAD + 7 * units, body + plan.front
  local ring, log = ringsAt, 0
  for u = 1, units do inFlight[u] = parse('>I7', state, body + HEAD + 7 * (u - 1)) end
  for i = 1, #rules do
    local algorithm, rule = plan[5 + units + 6 * (i - 1)], rules[i]
    if algorithm == LOG then log = log + 1 end
    local problem = rule.load(state, place, queues, ring, capacities[log], foreign)
    if problem then return problem end
    if algorithm == LOG then ring = ring + 7 * capacities[log] end
    if rule.groups then queues = queues + 14 * rule.groups.last end
    place = place + 7 * WORDS[algorithm]
  end
  slots = queue(queues, lengths.slots, 1 + units)
  firstLanding = lengths.slots > 0 and parse('>I7', state, queues) or NEVER
  queues = queues + 7 * (1 + units) * lengths.slots
  pool = readRecords(state, queues, lengths.pool, POOLED + units)
  queues = queues + 7 * (POOLED + units) * lengths.pool
  leases = readRecords(state, queues, lengths.leases, SUMS + units)
  queues = queues + 7 * (SUMS + units) * lengths.leases
  local sums, gap = leases[1], now - written
  if sums and not foreign and 3 * gap > sums[LENGTH] and gap < AWAY * sums[LENGTH] then
    sums[BEHIND] = sums[BEHIND] + gap - (divMod(sums[LENGTH], 3))
  end
  readings = readRecords(state, queues, lengths.readings, READING)
  tail = nil
  if lengths.tail > 0 then newTail(readRecords(state, queues + 7 * READING * lengths.readings, lengths.tail, RUN + units)) end
  for i = 1, #readings do
    if readings[i][HAS_OWN] == 1 then
      own[i] = ruleOf(plan, 5 + units + 6 * (i - 1))
      own[i].load(pack('>I7I7I7I7', spread(readings[i], 11, 14)), 1)
    end
  end
  if drift == lengths.drift then return end
  if tail then tail.commit(true) end
  for i = 1, #rules do
    if rules[i].correct then rules[i].correct() end
    if own[i] and own[i].correct then own[i].correct() end
  end
end
