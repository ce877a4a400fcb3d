-- turn.lua: requests that yield, which are booked for no later than soon. Each process is told
-- when to ask again: when those before it have gone, at the pace of the slowest tier. So they do not
-- all ask for the same instant, and nothing is charged for it: others go ahead of all of them. Units: µs.

local PASSED = 1000000 -- for so long a turn counts that nobody has taken

local turnsEnd -- when the last turn ends that was told
local delayedEnd -- the same of those who have asked in their turn, and could not go
local promised, promisedOld, oldEnd -- see joint.lua

-- How many of some requests may go now if there is room, with the turn that the caller was told,
-- or 0. Answers a function too that tells it another, no sooner than an instant.
local function turnOf(turn, count, cost, soon)
  local pace = 1
  for i = 1, plan.deciding do
    local t = 5 + units + 6 * (i - 1)
    local n, window = cost[unitOf[i]], plan[t + 3]
    if n > 0 and window > 0 then
      pace = max(pace, ceilMulDiv(n, window + (isBucket(plan[t]) and 0 or guard), plan[t + 2]))
    end
  end
  local together = max(1, (divMod(soon, pace))) -- in one turn
  local length = min(LATEST, pace * together)
  local told, may = turn > 0 and turn + PASSED >= now, count
  if told and turn > now + soon then
    return 0, function(at) return max(at, turn) end
  elseif told then
    if turnsEnd > turn + length then may = together end
  elseif turnsEnd > now + soon then
    may = 0
  end
  return may, function(at, left, went)
    length = min(LATEST, pace * min(left, together))
    if told and not went then
      at = max(at, delayedEnd)
      delayedEnd = min(LATEST, at + length)
      turnsEnd = max(turnsEnd, delayedEnd)
    else
      at = max(at, turnsEnd)
      turnsEnd = min(LATEST, at + length)
    end
    return at
  end
end
