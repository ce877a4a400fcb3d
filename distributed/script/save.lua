-- save.lua: writes the state, and answers. Units: µs, expiry ms.

-- The key expires a second after all in it has ceased to matter, or a guard later:
-- then nothing is lost with it.
local done = math.max(now, frontier, pause)
if slots.first <= slots.last then done = math.max(done, (landing(slots.last, 0))) end
for i = 1, #rules do done = math.max(done, rules[i].expires(), apart(i) > 0 and readings[i][6] or 0) end
for i = 1, #leases do done = math.max(done, leases[i][3]) end
if estimates then -- what is open lands when a lease ends, and then counts for so long at most
  local landing = done
  for i = 1, #rules do
    local n, t = open[unitOf[i]], 5 + units + 6 * (i - 1)
    if estimated[unitOf[i]] and n > 0 then
      done = math.max(done, landing + 2 * plan[t + 3] + ceilMulDiv(n, plan[t + 3], plan[t + 2]))
    end
  end
end
local expiry = 1000 + (divMod(done - now + 999, 1000))

for i = 1, #readings do
  local words, r = own[i] and own[i].words() or '', readings[i]
  r[10] = own[i] and 1 or 0
  for w = 1, 4 do r[10 + w] = 7 * w <= #words and parse('>I7', words, 7 * w - 6) or 0 end
end

local parts = {image or '', pack(FORMAT, now, wall, generation, frontier, crowd % 2 ^ 24, pause, epoch,
  (starving and 2 or 0) + (probe and 4 or 0) + (probing and 8 or 0), exact, slots.last - slots.first + 1, #pool, #leases, #readings, ban)}
for u = 1, units do parts[2 + u] = pack('>I7', estimated[u] and aloft[u] - open[u] or aloft[u]) end
for i = 1, #rules do parts[#parts + 1] = rules[i].words() end
for i = 1, #rules do
  if rules[i].groups then putQueue(parts, rules[i].groups) end
end
putQueue(parts, slots)
parts[#parts + 1] = recordBytes(pool, 1 + units)
parts[#parts + 1] = recordBytes(leases, 3 + units)
parts[#parts + 1] = recordBytes(readings, READING)
if image then
  local reserve = divMod(#image - ringsAt, 8)
  parts[#parts + 1] = string.rep('\0', math.min(8192, reserve))
  redis.call('SET', key, table.concat(parts), 'PX', text(expiry))
else
  redis.call('SETRANGE', key, text(bodyAt), table.concat(parts))
  redis.call('PEXPIRE', key, text(expiry))
end
for i = 1, #rules do
  if rules[i].save then rules[i].save() end
end
if freed then news = 'freed' end
if news then redis.pcall('PUBLISH', key, news) end -- a user who may not publish is not to fail

reply[3], reply[4] = expiry, epoch
if pause > now then reply[5], reply[6] = pause, isProbe and 2 or 0 end
if ban > now then reply[5], reply[6] = ban, 1 end

if op == 'q' then
  -- To know when a tier is unused, all on its way lands; that is not saved.
  local at, resets = frontier, {}
  for i = 1, #rules do resets[i] = apart(i) > 0 and readings[i][6] or 0 end
  if slots.first <= slots.last then advance((landing(slots.last, 0))) end
  for i = 1, #rules do
    local fresh = at
    if aloft[unitOf[i]] > 0 then
      fresh = NEVER
    elseif reply[5 + 3 * i] > 0 then
      fresh = math.max(frontier, rules[i].fresh(frontier), resets[i])
    end
    reply[7 + 3 * i] = fresh < NEVER and fresh or -1
  end
end
if math.tointeger then -- Lua 5.4 tells 3.0 from 3, and a server may answer so
  for i = 1, #reply do reply[i] = math.tointeger(reply[i]) end
end
return reply
