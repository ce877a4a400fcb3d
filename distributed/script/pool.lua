-- pool.lua: returned reservations, the earliest first. Units: µs.
-- Uses: plan.lua.
-- Gives: POOL, pool, findPooled, takePooled.
--
-- Returned reservations stay charged in every tier. So the next request of no larger cost may take
-- one over, or a part of it, which is exact for any mix of algorithms as long as the request is in
-- flight for no longer. An entry is an instant, a guard and the sum of the costs of all returned
-- reservations with these two.

local POOL = 64 -- the most entries; further returned reservations are lost
local pool

-- The index of the earliest entry from an instant on that has room for a cost and a guard no
-- shorter than the request's.
local function findPooled(from, cost)
  for i = 1, #pool do
    local p = pool[i]
    local fits = p[1] >= from and p[2] >= guard
    for u = 1, units do fits = fits and p[2 + u] >= cost[u] end
    if fits then return i end
  end
end

-- Takes a cost out of entry i.
local function takePooled(i, cost)
  local p, left = pool[i], 0
  for u = 1, units do
    p[2 + u] = p[2 + u] - cost[u]
    left = left + p[2 + u]
  end
  if left == 0 then table.remove(pool, i) end
end
