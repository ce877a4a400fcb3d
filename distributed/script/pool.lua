-- pool.lua: bookings that were given back, the earliest first. They stay charged in
-- every tier, so that handing one to the next request of the same cost is exact for
-- any mix of algorithms, as long as that is on its way for no longer. Units: µs. An entry
-- is its instant, its guard and its cost.

local POOL = 64 -- what is given back beyond it is lost, not lent
local pool

-- The place of the earliest entry of a cost, from an instant on, that lands no sooner than
-- what takes it over.
local function find(from, cost)
  for i = 1, #pool do
    local same = pool[i][1] >= from and pool[i][2] >= guard
    for u = 1, units do same = same and pool[i][2 + u] == cost[u] end
    if same then return i end
  end
end

local function giveBack(at, cost)
  local i = #pool
  while i > 0 and pool[i][1] > at do i = i - 1 end
  table.insert(pool, i + 1, {at, guard, spread(cost, 1, units)})
end
