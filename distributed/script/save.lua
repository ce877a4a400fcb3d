-- save.lua: writes the state. Units: µs, expiry ms.
-- Uses: call.lua, convert.lua, flight.lua, lease.lua, line.lua, need.lua, pack.lua, pause.lua, plan.lua, pool.lua,
-- queue.lua, reading.lua, slidinglog.lua, state.lua, tail.lua, turn.lua.
-- Gives: growRings, settled, save.
-- Sets: delayedEnd, lineEnd, lineFront, lineOpen, lineUntil, oldEnd, openTurns, promised, promisedOld,
-- turnsEnd, usedAlone.

local REMEMBERED = 2592000000000 -- how long a learned rate is kept without a call: 30 days

-- The expiry of the key in ms: a second, or a guard, after everything in it has ceased to matter.
-- So nothing is lost with the key. While something is open, the key lives longer, in case the server
-- is away, and so it does with a rate that was learned. The second value is without that, because a release may
-- shorten it.
local function expiryOf()
  local done = max(now, frontier, pause)
  if slots.first <= slots.last then done = max(done, (landing(slots.last, 0))) end
  for i = 1, #rules do
    local resets = #readings > 0 and readings[i][UNTIL] > frontier
    done = max(done, rules[i].expires(resets), resets and othersUsed(i) > 0 and readings[i][UNTIL] or 0)
  end
  if leases[1] then done = max(done, leases[LAST_EXPIRY] + leases[BEHIND]) end
  if level > 0 then done = max(done, now + 2000000 * 2 ^ level) end -- without a call for this long, the back-offs are forgotten
  if estimates then -- open estimates land when a lease ends, and then count for this long at most
    local landing = done
    for i = 1, #rules do
      local n, t = estimating[unitOf[i]] and open[unitOf[i]] or 0, 5 + units + 6 * (i - 1)
      if n > 0 then
        done = max(done, landing + 2 * plan[t + 3] + ceilMulDiv(n, plan[t + 3], plan[t + 2]))
      end
    end
  end
  local least, away = 1000 + (divMod(done - now + 999, 1000)), leases[1] and leases[QUEUED] or 0
  for u = 1, leases[1] and units or 0 do away = away + open[u] end
  if away > 0 then away = AWAY * leases[LENGTH] end
  for i = 1, #rules do
    if rules[i].learns and rules[i].hasLearned() then away = REMEMBERED end
  end
  return least + (divMod(away, 1000)), least
end

-- Makes save write the whole state if a ring is too small for the landed stamps.
local function growRings()
  local grow = false
  for i = 1, #rules do grow = grow or rules[i].grows and rules[i].grows() end
  if not grow then return end
  local old = image and sub(image, ringsAt + 1) or call('GETRANGE', key, text(ringsAt), text(bodyAt - 1))
  local from, to, rings = 0, ringsAt, {}
  for i = 1, #rules do
    if rules[i].grow then
      local n = #rings + 1
      local ring = sub(old, from + 1, from + 7 * capacities[n])
      from = from + #ring
      capacities[n], rings[n] = rules[i].grow(ring, to)
      to = to + #rings[n]
    end
  end
  setImage(rings)
end

-- The saved bytes of the tiers and the slots as they are now, frontier, atFrontier and the number
-- of slots. The caller sets the first two parts.
local function settled()
  growRings()
  local parts = {'', ''}
  for u = 1, units do parts[2 + u] = pack('>I7', estimating[u] and inFlight[u] - open[u] or inFlight[u]) end
  for i = 1, #rules do parts[#parts + 1] = rules[i].words() end
  for i = 1, #rules do
    if rules[i].groups then putQueue(parts, rules[i].groups) end
  end
  putQueue(parts, slots)
  return parts, frontier, atFrontier, slots.last - slots.first + 1
end

-- Writes the state, publishes news, and completes the header of the reply.
local function save()
  local expiry, least = expiryOf()
  if lease then places.save(expiry) end
  for i = 1, #readings do
    local words, r = own[i] and own[i].words() or '', readings[i]
    r[HAS_OWN] = own[i] and 1 or 0
    for w = 1, 4 do r[10 + w] = 7 * w <= #words and parse('>I7', words, 7 * w - 6) or 0 end
  end

  local turns = turnsEnd > now or delayedEnd > now
  if not turns then turnsEnd, delayedEnd, openTurns, promised, promisedOld, oldEnd, usedAlone = 0, 0, 0, 0, 0, 0, false end
  if lineOpen == 0 or max(lineUntil, pause) + OVER <= now then lineEnd, lineFront, lineOpen, lineUntil = 0, 0, 0, 0 end
  turns = turns or mixedUntil > now or lineOpen > 0 or bundledUntil > now
  local parts, frontier, atFrontier, count
  if tail and tail.base then parts, frontier, atFrontier, count = spread(tail.base, 1, 4) else parts, frontier, atFrontier, count = settled() end
  parts[1], parts[2] = image or '', pack(FORMAT, now, wall, generation, frontier, atFrontier % MOST_AT_FRONTIER + (tail and MOST_AT_FRONTIER * #tail.runs or 0), pause, epoch,
    (turns and (usedAlone and 3 or 1) or 0) + (probe and 4 or 0) + (probing and 8 or 0) + 16 * level, exact, count, #pool, leases[1] and 1 or 0, #readings, ban)
  putRecords(parts, pool, POOLED + units)
  if leases[1] then parts[#parts + 1] = pack(sevens(SUMS + units), spread(leases, 1, SUMS + units)) end
  putRecords(parts, readings, READING)
  if tail then putRecords(parts, tail.runs, RUN + units) end
  if turns then parts[#parts + 1] = pack(sevens(TURNS), turnsEnd, delayedEnd, openTurns, promised, promisedOld, oldEnd, mixedUntil, mixedPace, lineEnd, lineFront, lineOpen, lineUntil, bundledUntil) end
  if image then
    local reserve = divMod(#image - ringsAt, 8)
    parts[#parts + 1] = rep('\0', min(8192, reserve))
    call('SET', key, concat(parts), 'PX', text(expiry))
  else
    call('SETRANGE', key, text(bodyAt), concat(parts))
    call('PEXPIRE', key, text(expiry))
  end
  for i = 1, #rules do
    if rules[i].save then rules[i].save() end
  end
  if news then redis.pcall('PUBLISH', key, news) end -- pcall: a user without the right to publish must not fail

  reply[3], reply[4] = least, epoch
  if pause > now then reply[5], reply[6] = pause, isProbe and 2 or 0 end
  if ban > now then reply[5], reply[6] = ban, 1 end
  reply[6] = reply[6] + (mixedUntil > now and 4 or 0) + 8 * level
end
