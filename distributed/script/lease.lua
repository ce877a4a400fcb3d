-- lease.lua: what each process (owner) holds of the concurrency tiers, and what it has
-- estimated and not settled yet. It tells so with every call, numbered by seq, and is
-- believed for the length of its lease: a process that dies frees its places, and its
-- estimates are taken for what its requests cost. Units: µs.

local leases -- owner, seq, expiry, held of each unit
local lease -- the caller's
local starving, freed -- someone was refused; a place came free since

local function count()
  local sum = {}
  for u = 1, units do
    sum[u] = 0
    for i = 1, #leases do sum[u] = sum[u] + leases[i][3 + u] end
  end
  return sum
end

-- Takes note of what the caller tells. Answers what is wrong, if anything.
local function renew()
  local settled = {} -- of each unit, what was told and what has expired
  for u = 1, units do settled[u] = 0 end
  local owner, seq, expiry = argument(), argument(), now + argument()
  local full, alive = count(), {}
  for i = 1, #leases do
    local l = leases[i]
    if l[3] > now then
      alive[#alive + 1] = l
      if l[1] == owner then lease = l end
    else
      for u = 1, units do settled[u] = settled[u] + l[3 + u] end
    end
  end
  if lease and seq <= lease[2] then return 'stale call: a later one has come before it' end
  leases = alive
  if not lease then
    lease = {}
    leases[#leases + 1] = lease
  end
  lease[1], lease[2], lease[3] = owner, seq, expiry
  for u = 1, units do lease[3 + u] = u <= told and argument() or 0 end
  open = count()
  for u = 1, units do freed = freed or starving and open[u] < full[u] end
  starving = starving and not freed
  if estimates then
    for u = 1, units do
      settled[u] = settled[u] + (u <= told and argument() or 0)
      if estimated[u] then aloft[u] = aloft[u] + open[u] end
    end
    advance(now)
    for i = 1, #rules do
      local u = unitOf[i]
      if estimated[u] and settled[u] > 0 then land(i, frontier, settled[u]) end
    end
  end
end
