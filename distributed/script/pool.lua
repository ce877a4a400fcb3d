-- pool.lua: bookings that were given back, the earliest first. They stay charged in
-- every tier, so that handing one, or a part of it, to the next request of no larger cost is
-- exact for any mix of algorithms, as long as that is on its way for no longer. Units: µs. An
-- entry is its instant, its guard and its cost, of all bookings with those two.

local POOL = 64 -- what is given back beyond it is lost, not lent
local pool

-- The place of the earliest entry with room for a cost, from an instant on, that lands no sooner
-- than what takes it over.
local function find(from, cost)
  for i = 1, #pool do
    local p = pool[i]
    local fits = p[1] >= from and p[2] >= guard
    for u = 1, units do fits = fits and p[2 + u] >= cost[u] end
    if fits then return i end
  end
end

-- Takes a cost from an entry.
local function take(i, cost)
  local p, left = pool[i], 0
  for u = 1, units do
    p[2 + u] = p[2 + u] - cost[u]
    left = left + p[2 + u]
  end
  if left == 0 then table.remove(pool, i) end
end
