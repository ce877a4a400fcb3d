-- pool.lua: bookings that were given back. They stay charged in every tier, so
-- that handing one to the next request of the same cost is exact for any mix of
-- algorithms. Units: µs. An entry is its instant and its cost; the earliest is first.

local POOL = 64 -- what is given back beyond it is lost, not lent

local pool = {}

local function readPool(at, n)
  local width = 1 + units
  for i = 1, n do pool[i] = {parse(sevens(width), body, at + 7 * width * (i - 1))} end
end

-- Drops what can never be used: nobody may go before an instant.
local function drain(before)
  while pool[1] and pool[1][1] < before do table.remove(pool, 1) end
end

local function equal(entry, cost)
  for u = 1, units do
    if entry[1 + u] ~= cost[u] then return false end
  end
  return true
end

-- The place of the earliest entry of that cost from an instant on.
local function find(from, cost)
  for i = 1, #pool do
    if pool[i][1] >= from and equal(pool[i], cost) then return i end
  end
end

local function giveBack(at, cost)
  local i = #pool
  while i > 0 and pool[i][1] > at do i = i - 1 end
  table.insert(pool, i + 1, {at, spread(cost, 1, units)})
end

local function poolBytes()
  local out, width = {}, 1 + units
  for i = 1, #pool do out[i] = pack(sevens(width), spread(pool[i], 1, width)) end
  return concat(out)
end
