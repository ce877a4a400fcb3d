-- reading.lua: what the provider reported of each tier, and what it proves that others use.
-- Units: µs. Twin: algorithms/observe.go, which explains it.
--
-- A reading is when it was received, or 0; the units that it reports; by how much own units
-- that may have been counted by then exceed it; when something was last charged for others;
-- until when these are taken to go on; and what was charged for them until a reset, and when
-- that is. There is one of each tier, or none.

local MOST_USED = 2 ^ 50 -- more than any tier can hold

-- How many of a unit are in flight that left by now.
local function left(unit)
  local n = aloft[unit]
  for i = slots.first, slots.last do
    local at, carried = landing(i, unit)
    if at > now + guard then n = n - carried end
  end
  return n
end

-- When tier i forgets a unit that lands now, if it forgets all of them at once, and else now.
local function forgets(i)
  local t = 5 + units + 6 * (i - 1)
  local algorithm, window = plan[t], plan[t + 3]
  if algorithm == LOG or algorithm == WINDOW then return frontier + window end
  if algorithm == FIXED then return startOf(numberOf(frontier, window, plan[t + 5]) + 1, window, plan[t + 5]) end
  return frontier
end

-- What others have used of tier i and the tier does not count, as far as it is proved by the
-- response to a request of n units, admitted at an instant.
local function others(i, used, since, n)
  for k = #readings + 1, #rules do readings[k] = {0, 0, 0, 0, 0, 0, 0} end
  local r, window = readings[i], plan[5 + units + 6 * (i - 1) + 3]
  -- What has left its window since the request was sent may have been counted still.
  local own = math.min(rules[i].used(math.min(since, frontier)), MOST_USED) + apart(i) + left(unitOf[i])
  local short = r[3]
  if since < r[1] and used > r[2] then short = short - n end -- it was counted later
  local more = math.max(0, used + (frontier < r[5] and 1 or 0) - own)
  if r[1] > 0 then more = math.max(more, -short) end
  if more > 0 then
    if frontier < r[4] + window then r[5] = frontier + window end
    r[4] = frontier
  end
  r[3] = short + more
  if since >= r[1] then r[1], r[2], r[3] = frontier, used, own + more - used end
  return more
end
