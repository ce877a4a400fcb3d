-- turn.lua: turns of requests that yield, which are reserved at most soon ahead. Units: µs.
-- Uses: convert.lua, flight.lua, plan.lua, rule.lua, state.lua.
-- Gives: turnOf, turnsEnd, delayedEnd, openTurns, promised, promisedOld, oldEnd, usedAlone.
--
-- Each process receives a turn: the instant at which to ask again, after the turns before it, at
-- the pace of the slowest tier. So the processes do not ask for the same instant. A turn charges
-- nothing: other requests go ahead of all of them.
--
-- While releases with other plans call by turns, a tier does not delay the turns: each release goes on
-- at its own pace.

local PASSED = 1000000 -- how long an unused turn counts

local turnsEnd -- the end of the last turn
local openTurns -- how many processes have a turn
local delayedEnd -- the end of the last turn of a process that asked in its turn and could not go
-- Of a bundle: how many requests are promised for instants after oldEnd, and until then; see
-- bundle.lua.
local promised, promisedOld, oldEnd
local usedAlone -- whether a request was reserved in this quota alone while others were promised

-- How many of a group of requests may go now if the tiers admit them, given the caller's turn, or
-- 0. Also returns a function that returns the caller's next turn, no sooner than an instant.
local function turnOf(turn, count, cost, soon)
  local pace, fastest, mixed = 1, LATEST, false
  for i = 1, plan.deciding do
    local t, n = 5 + units + 6 * (i - 1), cost[unitOf[i]]
    if n > 0 and plan[t + 3] > 0 then
      local limit, window = rateOf(i)
      local own = ceilMulDiv(n, window, limit)
      fastest = min(fastest, own)
      if isBucket(plan[t]) then -- which holds so many requests, and drains when they have landed
        pace = max(pace, own, ceilMulDiv(own + guard, 1, max(1, (divMod(capacity[i], n)))))
      else
        pace = max(pace, rules[i].learns and own or ceilMulDiv(n, window + guard, limit))
      end
    end
  end
  pace, mixed = paceOfTurns(pace, fastest)
  local together = max(1, (divMod(soon, pace))) -- in one turn
  local length = min(LATEST, pace * together)
  local hasTurn, may = turn > 0 and turn + PASSED >= now and turn <= max(now, turnsEnd), count -- a later one is of a lost state
  if hasTurn and turn > now + soon then
    return 0, function(at)
      openTurns = openTurns + 1
      return max(at, turn)
    end
  elseif hasTurn then
    if turnsEnd > turn + length then may = together end
  elseif turnsEnd > now + soon then
    may = 0
  end
  return may, function(at, left, someWent)
    openTurns = openTurns + 1
    length = min(LATEST, pace * min(left, together))
    if hasTurn and not someWent and not mixed then
      at = max(at, delayedEnd)
      delayedEnd = min(LATEST, at + length)
      turnsEnd = max(turnsEnd, delayedEnd)
    else
      local begins = mixed and max(now, turnsEnd) or max(at, turnsEnd)
      at, turnsEnd = max(at, begins), min(LATEST, begins + length)
    end
    return at
  end
end
