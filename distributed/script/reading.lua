-- reading.lua: the operation observe: the provider's reports of each tier, and the use by other
-- programs that they prove. Units: µs.
-- Twin: algorithms/observe.go, which explains the method.
-- Uses: call.lua, flight.lua, pause.lua, plan.lua, rule.lua, state.lua.
-- Gives: ops.observe.
-- Sets: exact.
--
-- "Others" are other programs, whose requests this quota does not admit. There is one reading for
-- each tier, or none at all. It is a list of these numbers:

local RECEIVED_AT = 1 -- when the report was received, or 0
local REPORTED = 2 -- the units in the report
local EXCESS = 3 -- by how much the own units that the provider may have counted by then exceed it
local FOUND_AT = 4 -- when units were last charged for others
local BUSY_UNTIL = 5 -- until when the use by others is assumed to go on
-- algorithms/reset.go explains the following numbers.
local UNTIL = 6 -- when the count ends
local OTHERS = 7 -- the units charged for others until then, besides those in the rule
-- The units landed since the report; of a window, those that the provider may not have counted
-- before its end.
local LANDED = 8
local OPENED_AT = 9 -- when the window last reopened
-- 1 if the tier has a rule without others, and then numbers 11 to 14 are the words of that rule.
local HAS_OWN = 10
local FROM = 15 -- when a log found others after finding none, or when a window ends at the earliest
local BASE = 16 -- how many others the log found then
local PROBE_AT = 17 -- from when on one request may go as a probe, or 0
local PROBED_AT = 18 -- PROBE_AT of the probe whose response is outstanding, or 0

local MOST_USED = 2 ^ 50 -- more than any tier can hold

-- Whether the first units in flight land before an instant.
local function hasInFlight(unit, before)
  for i = slots.first, slots.last do
    local at, carried = landing(i, unit)
    if carried > 0 then return at < before end
  end
  return false
end

-- The amount of a unit in flight that was sent by now, if no request is in flight for longer than
-- that.
local function inFlightBefore(unit, longest)
  local n = inFlight[unit]
  for i = slots.first, slots.last do
    local at, carried = landing(i, unit)
    if at > now + longest then n = n - carried end
  end
  return n
end

-- When a count ends. was is the end of the count in an earlier report, which may be the same count.
local function earlierEnd(was, reset, slack)
  local ends = frontier + reset
  return was > frontier and was >= ends - slack and min(was, ends) or ends
end

-- Whether tier i counts others separately, because it keeps the instant at which each unit landed.
local function hasStamps(i)
  local algorithm = plan[5 + units + 6 * (i - 1)]
  return algorithm == LOG or algorithm == WINDOW
end

-- When a count ends at the earliest. The report may be from any instant since its request.
local function endsFrom(since, reset, slack) return frontier + reset - slack - max(0, now - since) end

-- Whether a report contains the end of a window of unknown phase.
local function tellsEnd(i, reset, slack)
  local window = plan[8 + units + 6 * (i - 1)]
  return rules[i].unaligned and reset > 0 and reset - slack <= window and 2 * slack < window
end

-- Ends what was charged for others in a window of unknown phase with the first report of a later
-- window. Returns false if the report is about an earlier window.
local function turnWindow(i, since, reset, slack)
  local r = readings[i]
  if r[UNTIL] == 0 or not tellsEnd(i, reset, slack) then return true end
  local window, later = plan[8 + units + 6 * (i - 1)], frontier + reset - r[UNTIL]
  if 2 * later > window then r[RECEIVED_AT], r[UNTIL], r[OTHERS] = 0, 0, 0 end
  return 2 * later >= -window or since >= r[UNTIL] - window
end

-- The instant until which tier i counts others separately.
local function endOthers(i, reset, slack)
  local ends = frontier + plan[8 + units + 6 * (i - 1)]
  return reset > 0 and min(ends, earlierEnd(readings[i][UNTIL], reset, slack)) or ends
end

-- Charges n units of tier i for others, until the reset if the report contains one.
local function landOthers(i, n, reset, slack)
  local r = readings[i]
  if hasStamps(i) then
    if r[OTHERS] == 0 then r[FROM], r[BASE] = frontier, n end
    r[UNTIL], r[OTHERS] = endOthers(i, reset, slack), r[OTHERS] + n
  elseif reset == 0 then
    land(i, frontier, n)
  elseif rules[i].reopens then
    rules[i].land(frontier, n)
  else
    if not own[i] then
      own[i] = ruleOf(plan, 5 + units + 6 * (i - 1))
      own[i].load(rules[i].words(), 1)
    end
    rules[i].land(frontier, n)
    r[UNTIL] = earlierEnd(r[UNTIL], reset, slack)
  end
end

-- Updates the separate count of others in tier i, after the report for a request of n units that
-- was admitted at since.
local function keepOthers(i, used, since, n, reset, slack)
  local r, rule, t = readings[i], rules[i], 5 + units + 6 * (i - 1)
  local window = plan[t + 3]
  if not hasStamps(i) or r[OTHERS] == 0 or r[RECEIVED_AT] ~= frontier then return end
  if frontier >= r[FOUND_AT] + window and used < capacity[i] then
    local landed = rule.used(frontier + guard + plan[t + 5]) - rule.used(since + window) + n
    local most = max(0, used - landed)
    if most > 0 and frontier < r[BUSY_UNTIL] then most = most + 1 end
    local less = max(0, min(r[OTHERS] - most, r[EXCESS]))
    r[OTHERS], r[EXCESS] = r[OTHERS] - less, r[EXCESS] - less
  end
  if r[OTHERS] > 0 and frontier < r[BUSY_UNTIL] then r[BUSY_UNTIL] = frontier + window end
  r[UNTIL] = endOthers(i, reset, slack)
end

-- Makes the window of tier i reopen at the reset, if the provider counted all landed units before
-- it. Otherwise the units charged for others with this report end at the reset. In tiers without
-- windows a request goes as a probe after the reset, unless a probe is due already.
local function noteReset(i, since, reset, slack, others)
  local shortest = plan[5 + units + 6 * (i - 1)] == CALENDAR and 79200000000 or plan[8 + units + 6 * (i - 1)]
  local rule, r, from = rules[i], readings[i], endsFrom(since, reset, slack)
  if reset == 0 then return end
  if not rule.reopens then
    if r[PROBE_AT] == 0 or r[PROBE_AT] > frontier then r[PROBE_AT] = earlierEnd(r[PROBE_AT], reset, slack) end
    if tellsEnd(i, reset, slack) then r[UNTIL] = earlierEnd(r[UNTIL], reset, slack) end
  elseif from > frontier and 2 * slack < shortest then
    local ends = earlierEnd(r[UNTIL], reset, slack)
    if r[UNTIL] <= frontier then -- no reset was known
    elseif r[UNTIL] < ends then -- the previous window has ended
      if rule.reopen then rule.reopen() end
    elseif r[FROM] <= ends then
      from = max(from, r[FROM])
    end
    r[UNTIL], r[LANDED], r[FROM] = ends, 0, from
  elseif others > 0 and r[UNTIL] <= frontier then
    r[UNTIL], r[LANDED], r[FROM] = frontier + reset, rule.used(frontier) - others, 0
  end
end

-- How many own units may have left tier i one by one, between the request of a report, when the tier
-- counted that many, and an instant.
local function mayHaveLeft(i, counted, since, untilThen)
  local rule, t = rules[i], 5 + units + 6 * (i - 1)
  if rule.reopens then return 0 end
  if hasStamps(i) then untilThen = untilThen + plan[t + 5] end
  local n = counted - rule.used(untilThen)
  -- Stamps of the window before the request may have been overwritten, by those since then.
  if plan[t] == LOG and counted >= capacity[i] then n = n + rule.used(since + plan[t + 3]) end
  return n
end

-- The units of others that tier i does not count yet, and that the response to a request of n units
-- proves. The request was admitted at since. No request is in flight for longer than longest.
local function uncounted(i, used, since, n, longest, reset, slack)
  local r, window = readings[i], plan[5 + units + 6 * (i - 1) + 3]
  -- The provider may still have counted units that have left their window since the request was
  -- sent. But a window of unknown phase has none that leave before its end.
  local at = min(since, frontier)
  if tellsEnd(i, reset, slack) then at = max(at, endsFrom(since, reset, slack) - 1) end
  local counted = rules[i].used(at)
  local own = min(counted, MOST_USED) + r[OTHERS] + inFlightBefore(unitOf[i], longest)
  local short = r[EXCESS]
  if since < r[RECEIVED_AT] and used > r[REPORTED] and used - mayHaveLeft(i, counted, since, r[RECEIVED_AT] + longest) > r[REPORTED] then
    short = short - n -- the provider counted this request after the previous report
  end
  local more = max(0, used + (frontier < r[BUSY_UNTIL] and 1 or 0) - own)
  if r[RECEIVED_AT] > 0 then more = max(more, -short) end
  if more > 0 then
    if frontier < r[FOUND_AT] + window then r[BUSY_UNTIL] = frontier + window end
    r[FOUND_AT] = frontier
  end
  r[EXCESS] = short + more
  if since >= r[RECEIVED_AT] and not hasInFlight(unitOf[i], r[RECEIVED_AT] + longest + resolution) then
    r[RECEIVED_AT], r[REPORTED], r[EXCESS] = frontier, used, own + more - used
  end
  return more
end

function ops.observe()
  local longest = max(guard, argument())
  advance(now)
  while cursor <= #arguments do
    local i, used, since, n, isExact, reset, slack = argument(), argument(), argument(), argument(), argument(), argument(), argument()
    local rule, u = rules[i], unitOf[i]
    local ignores = rule.concurrent or rule.learns
    for k = #readings + 1, ignores and 0 or #rules do readings[k] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} end
    local r = readings[i]
    local ended = rule.opened and rule.opened(frontier) > since or r and r[OPENED_AT] > since
    used, reset = min(used, capacity[i]), max(0, reset - (frontier - now))
    if not ignores and not ended and turnWindow(i, since, reset, slack) then
      local keep = estimating[u] and max(0, used - inFlight[u]) or used
      local more = uncounted(i, used, since, n, longest, reset, slack)
      -- The report of a request admitted when a probe was due, or later, is authoritative, except
      -- for units that landed later.
      local decides = r[PROBED_AT] > 0 and since >= r[PROBED_AT]
      if decides then
        keep, r[PROBED_AT] = keep + max(0, r[LANDED] - n), 0
        if probing then endProbe() end
      end
      if more > 0 then
        if rule.send then rule.send(frontier) end
        landOthers(i, more, reset, slack)
      elseif decides or isExact == 1 and since >= exact then
        -- Responses that overtook the report are not in it.
        if not decides and hasStamps(i) then keep = keep + max(0, rule.used(since + plan[5 + units + 6 * (i - 1) + 3]) - (guard > 0 and not estimating[u] and n or 0)) end
        rule.forget(frontier, keep)
        if own[i] then own[i].forget(frontier, keep) end
        r[OTHERS] = max(0, min(r[OTHERS], keep - rule.used(frontier)))
      end
      keepOthers(i, used, since, n, reset, slack)
      noteReset(i, since, reset, slack, more)
      if rule.proveOpen and used > 0 then rule.proveOpen(since, now) end
    end
    if isExact == 1 then exact = max(exact, since) end
  end
end
