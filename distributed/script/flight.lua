-- flight.lua: the requests in flight, and the ledger's clock. Units: µs.
-- Twin: algorithms/flight.go and ledger.go, for requests that are not held. Their estimates are in
-- flight without a slot until they are settled.
-- Uses: plan.lua, queue.lua, reading.lua, rule.lua.
-- Gives: the locals below, rateOf, landing to lastLanding, land, advance, othersUsed, admits, mayProbe,
-- awaitsProbe, earliest, sparing, charge.
--
-- A slot is the instant at which its requests land, and their amount of each unit. Requests that
-- would land within one resolution of each other share a slot.

local rules, unitOf -- by tier
local inFlight -- by unit, the amount in flight
local open -- by unit, the amount that all processes hold, or have estimated and not settled
local slots -- a queue
local firstLanding -- the landing of the first slot
local frontier -- the latest instant of a decision: the next reservation is not before it
local atFrontier -- the number of requests charged at that instant
local sendFrom -- no request of this call is sent before this instant, at which the reply arrives
local capacity -- by tier, the largest cost
local readings -- by tier, the provider's reports, or empty, see reading.lua
local probed -- whether the last charged request is a probe that a tier would have refused
local own -- by tier that counts other programs until a reset, the rule without them

-- The rate of tier i as a limit and a window: of a calendar its longest period, and of a learned tier what it
-- knows now.
local function rateOf(i)
  if rules[i].rate then return rules[i].rate() end
  local t = 5 + units + 6 * (i - 1)
  return plan[t + 2], plan[t] == CALENDAR and plan[t + 4] or plan[t + 3]
end

-- When slot i lands, and its amount of a unit.
local function landing(i, unit)
  local s = (i - 1) * slots.width
  if not slots[s + 1] then record(slots, i) end
  return slots[s + 1], slots[s + 1 + unit]
end

-- When the n-th oldest unit in flight lands.
local function nthLanding(unit, n)
  for i = slots.first, slots.last do
    local at, carried = landing(i, unit)
    n = n - carried
    if n <= 0 then return at end
  end
  return NEVER
end

-- When the last unit in flight lands, nil if there is none.
local function lastLanding(unit)
  if inFlight[unit] == 0 then return nil end
  for i = slots.last, slots.first, -1 do
    local at, carried = landing(i, unit)
    if carried > 0 then return at end
  end
end

-- Counts n landed units in tier i, with and without other programs.
local function land(i, at, n)
  rules[i].land(at, n)
  local r = readings[i]
  if r and (at >= r[FROM] or not rules[i].reopens) then r[LANDED] = r[LANDED] + n end
  if own[i] then own[i].land(at, n) end
end

-- Lands the slots up to the frontier.
local function landSlots()
  local first, after = slots.first, slots.first + 1
  record(slots, first)
  while after <= slots.last and landing(after, 0) <= frontier do after = after + 1 end
  for i = 1, #rules do
    local unit, rule = unitOf[i], rules[i]
    if rule.landAll and not readings[i] then
      rule.landAll(first, after - 1)
    else
      for j = first, after - 1 do
        local at, n = landing(j, unit)
        if n > 0 then land(i, at, n) end
      end
    end
  end
  for u = 1, units do
    local n = inFlight[u]
    for j = first, after - 1 do n = n - slots[(j - 1) * slots.width + 1 + u] end
    inFlight[u] = n
  end
  slots.first = after
  firstLanding = after <= slots.last and landing(after, 0) or NEVER
end

-- Moves the frontier, lands the requests whose guard has passed, and ends the counts whose reset
-- has come.
local function advance(now)
  if now > frontier then frontier, atFrontier = now, 0 end
  if firstLanding <= frontier then landSlots() end
  for i = 1, #readings do
    local r = readings[i]
    if r[UNTIL] > 0 and r[UNTIL] <= frontier then
      if own[i] then rules[i], own[i] = own[i], nil end
      if rules[i].reopens then
        if rules[i].reopen then rules[i].reopen() end
        rules[i].forget(frontier, r[LANDED])
        r[LANDED], r[OPENED_AT], r[FROM] = 0, r[UNTIL], 0
      end
      if rules[i].unaligned then r[RECEIVED_AT] = 0 end
      r[UNTIL], r[OTHERS] = 0, 0
    end
  end
  return frontier
end

-- The units of other programs that tier i counts until a reset. It adds the units since the last
-- report, at the rate since they were found.
local function othersUsed(i)
  local r = readings[i]
  if not r or r[UNTIL] <= frontier then return 0 end
  local seen, since = r[RECEIVED_AT] - r[FROM], min(frontier, r[FROM] + plan[8 + units + 6 * (i - 1)]) - r[RECEIVED_AT]
  local grown = r[OTHERS] - (frontier < r[BUSY_UNTIL] and 1 or 0) - r[BASE]
  if since <= 0 or frontier - r[RECEIVED_AT] > seen or grown <= 0 then return r[OTHERS] end
  local n, rest = mulDiv(grown, since, seen)
  return r[OTHERS] + n + (2 * rest >= seen and 1 or 0)
end

-- The amount of a unit in flight that may land at an instant or later.
local function landingFrom(unit, from)
  local n = inFlight[unit]
  for i = slots.first, slots.last do
    local at, carried = landing(i, unit)
    if at >= from then break end
    n = n - carried
  end
  return n
end

-- admits before a reset. at is the instant at which the rule alone admits.
local function admitsWithReset(i, n, at, r, rule)
  if own[i] then return min(at, max(r[UNTIL], own[i].earliest(frontier, n))) end
  if rule.reopens then
    return r[LANDED] + landingFrom(unitOf[i], r[FROM]) + n <= capacity[i] and min(at, r[UNTIL]) or at
  end
  if r[OTHERS] == 0 then return at end
  at, n = max(at, r[UNTIL]), n + othersUsed(i)
  return n <= capacity[i] and min(at, rule.earliest(frontier, n)) or at
end

-- The first instant from the frontier on at which tier i admits n units.
local function admits(i, n)
  local at, r = rules[i].earliest(frontier, n), readings[i]
  if not r then return at end
  if r[UNTIL] > frontier then at = admitsWithReset(i, n, at, r, rules[i]) end
  return r[PROBE_AT] > 0 and min(at, max(frontier, r[PROBE_AT])) or at
end

-- Makes the charged request the probe of each tier where one is due.
local function recordProbes(cost, count)
  for i = 1, #readings do
    local r, n = readings[i], count * cost[unitOf[i]]
    if n > 0 and r[PROBE_AT] > 0 and r[PROBE_AT] <= frontier then
      r[PROBED_AT], r[PROBE_AT], r[LANDED] = r[PROBE_AT], 0, 0
      probed = probed or admits(i, n) > frontier
    end
  end
end

-- Whether a request of this cost would be a probe now.
local function mayProbe(cost)
  for i = 1, #readings do
    if cost[unitOf[i]] > 0 and readings[i][PROBE_AT] > 0 and readings[i][PROBE_AT] <= frontier then return true end
  end
  return false
end

-- Whether the response to such a probe is outstanding.
local function awaitsProbe()
  for i = 1, #readings do
    if readings[i][PROBED_AT] > 0 then return true end
  end
  return false
end

-- The first instant from the frontier on at which every tier admits the cost and its spare amount,
-- if any, and the tier that decides, or -1.
local function earliest(cost, spare)
  local at, tier = frontier, -1
  for i = 1, plan.deciding do
    local n = cost[unitOf[i]]
    if n > 0 then
      if spare then n = n + spare[i] end
      local e = readings[i] and admits(i, n) or rules[i].earliest(frontier, n)
      if e > at then at, tier = e, i end
    end
  end
  return at, tier
end

-- By tier, the amount to leave free beside a cost.
local function sparing(cost, headroom)
  local spare = {}
  for i = 1, plan.deciding do
    spare[i] = headroom > 0 and min((mulDiv(capacity[i], headroom, 100)), capacity[i] - cost[unitOf[i]]) or 0
  end
  return spare
end

-- Adds requests to the slot of their landing.
local function addInFlight(at, cost, count)
  local lands, s = max(at, sendFrom) + guard, nil
  if slots.first <= slots.last then
    s = lastRecord(slots)
    local last = slots[s + 1]
    if last > lands then lands = last end -- the last request has a longer guard
    if last - last % resolution ~= lands - lands % resolution then s = nil end
  end
  if not s then
    s = append(slots)
    for u = 1, units do slots[s + 1 + u] = 0 end
  end
  slots[s + 1] = lands
  if slots.first == slots.last then firstLanding = lands end
  for u = 1, units do
    if not estimated[u] then
      local n = count * cost[u]
      slots[s + 1 + u], inFlight[u] = slots[s + 1 + u] + n, inFlight[u] + n
    end
  end
end

-- Charges a number of requests of a cost at an instant, or at the frontier if that is later.
local function charge(at, cost, count)
  at = advance(at)
  atFrontier = atFrontier + count
  probed = false
  if #readings > 0 then recordProbes(cost, count) end
  for i = 1, #rules do
    local n, rule = count * cost[unitOf[i]], rules[i]
    if n > 0 then
      if rule.send then rule.send(at, cost[unitOf[i]], count) end
      if guard == 0 and not estimated[unitOf[i]] then
        land(i, at, n)
        if rule.proveOpen then rule.proveOpen(at, at) end
      end
    end
  end
  if guard > 0 then addInFlight(at, cost, count) end
end
