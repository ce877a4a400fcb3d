-- convert.lua: converts the charges of a state to a changed policy. Units: µs.
-- Twin: algorithms/convert.go.
-- Uses: calendar.lua, call.lua, fixedwindow.lua, flight.lua, lease.lua, line.lua, pack.lua, plan.lua,
-- pause.lua, queue.lua, reading.lua, rule.lua, save.lua, slidinglog.lua, state.lua, tail.lua, tiers.lua,
-- turn.lua.
-- Gives: convert, paceOfTurns, mixedUntil, mixedPace.
-- Sets: body, capacities, cursor, delayedEnd, image, inline, leases, lineOpen, oldEnd, openTurns, probe, promised,
-- promisedOld, ringsAt, state, turnsEnd.
--
-- A tier takes over from the old tier of its algorithm, window (for a calendar: period and zone) and
-- unit; of several, from the most used one. Any other tier starts with the largest use of an old
-- tier of its unit: with the stamps if both tiers keep stamps, and otherwise charged at the frontier.
--
-- While a fleet changes its policy, releases call by turns. So the tiers of other releases are kept
-- as guest tiers, and charged, until a window, at least an hour and at most a day, or twice that,
-- has passed since the last call of a release that has the tier, and while leases contain amounts of
-- its unit. From then on the state is that of
-- the plan with its guest tiers: those of the other release, in another order, so that a call only
-- moves their numbers. If tiers share what they keep, it may exceed the capacity of one
-- of them, and a log has room for all stamps in view.
--
-- What has passed until now has passed under the old plan: requests that have landed since the last
-- call land in the old tiers, and its buckets have drained at their rate.
--
-- Requests in flight stay in flight. Clock, frontier, pause and generation do not depend on the
-- policy. The pool is dropped: its reservations are charged in the old tiers, but maybe not in the
-- new ones. Turns end when another release first calls or tiers follow
-- named limits, because their length depends on the tiers. The readings are dropped, and the
-- units that they charged for others until a reset are charged now.

local MOST_STAMPS = 2 ^ 16 -- the most stamps that a log keeps beyond its limit
local MIXED = 10000000 -- how long after a call of another release both are expected to call
local HOUR = 3600000000
local DAY = 86400000000

-- Until when releases with other plans are expected to call, and for how long the fastest of their tiers
-- spaces requests that cost one unit.
local mixedUntil, mixedPace

-- For how long turns are spaced that the slowest and the fastest tier space for the given times, and
-- whether releases with other plans call, too. Then it is half as long as in the fastest tier of any
-- of them, because a release whose tiers are full does not use its turns.
local function paceOfTurns(slowest, fastest)
  if mixedUntil <= now then return slowest, false end
  return max(1, (divMod((mulDiv(fastest, mixedPace, paceOf(plan))), 2))), true
end

-- Lands what is due in the state of another plan, and advances its frontier to now. kept is as for
-- convert.
local function catchUp(kept)
  adopt(planOf(kept.words, kept.plan))
  image, ringsAt, probe, leases = state, kept.rings - 1, flags % 8 >= 4, {}
  if loadTiers(true) then return end -- a tier of the new plan has the same problem
  if tail then tail.commit(false) end
  advance(now)
  growRings()
  local parts, rings, from = {rep('\0', HEAD)}, {}, ringsAt + 1
  for u = 1, units do parts[1 + u] = pack('>I7', inFlight[u]) end
  for i = 1, #rules do
    local rule = rules[i]
    parts[#parts + 1] = rule.words()
    if rule.ringWith then
      local n = #rings + 1
      rings[n] = rule.ringWith(sub(image, from, from + 7 * capacities[n] - 1))
      from = from + 7 * capacities[n]
    end
  end
  for i = 1, #rules do
    if rules[i].groups then putQueue(parts, rules[i].groups) end
  end
  putQueue(parts, slots)
  putRecords(parts, leases, SUMS + units)
  putRecords(parts, readings, READING)
  if tail then putRecords(parts, tail.runs, RUN + units) end
  lengths.slots, lengths.pool, lengths.tail = slots.last - slots.first + 1, 0, tail and #tail.runs or 0
  setImage(rings)
  state, body, kept.rings = image .. concat(parts), #image + 1, ringsAt + 1
end

-- The part of a plan's text about its own units and tiers.
local function limitsOf(words) return string.match(words, '^%d+ %d+ ([%d ]*)') end

local function hashOf(p, t) return p[5 + p[t + 1]] % ESTIMATE end

-- The names and the kinds of a plan's tiers, by where they are in its list. Tiers of a kind keep the
-- same numbers, whatever their limits. byKind is the index of the only tier of a kind.
local function namesOf(p)
  if p.names then return p.names, p.kinds end
  p.names, p.kinds, p.byKind = {}, {}, {}
  for t = 5 + p[3], #p, 6 do
    local algorithm = p[t]
    local name = concat({algorithm, p[t + 3], hashOf(p, t), algorithm == CALENDAR and text(p[t + 5]) or nil}, ' ')
    local more = isBucket(algorithm) and p[t + 2] or (algorithm == FIXED or algorithm == WEIGHTED) and p[t + 5]
    local kind = more and name .. ' ' .. text(more) or name
    p.names[t], p.kinds[t], p.byKind[kind] = name, kind, p.byKind[kind] == nil and (t + 1 - p[3]) / 6
  end
  return p.names, p.kinds
end

-- Converts the state of another plan to the plan of a text, with guest tiers, and makes that the
-- current plan. Returns whether that plan has taken over later limits of the same policy.
local function convert(words, kept)
  local present, later, sums = plan, isLater(plan, kept.plan), nil
  local mixed = kept.current and not later and limitsOf(words) ~= limitsOf(kept.words)
  local old, wordsOf, head = kept.plan, kept.wordsOf, kept.head
  local unused = rep('\0', 7 * 7)
  local oldNames, oldKinds = namesOf(old)

  -- The text of the plan with its guest tiers, and the list of that text.
  local function withKept()
    local words, hashes, tiers, unit, has = words, {}, {}, {}, {}
    local _, kinds = namesOf(plan)
    for u = 1, units do unit[plan[4 + u] % ESTIMATE] = u - 1 end
    for t = 5 + units, #plan, 6 do has[kinds[t]] = true end
    for t = 5 + old[3], kept.current and #old or 0, 6 do
      local i = (t - 5 - old[3]) / 6 + 1 - old.deciding
      local span = max(HOUR, min(DAY, old[t] == CALENDAR and DAY or old[t + 3]))
      local held = sums and sums[SUMS + 1 + old[t + 1]] > 0
      local ends = i > 0 and not held and old.ends[i] or (divMod(wall, span) + 2) * span
      if (i > 0 or not later) and (held or ends > wall and #tiers < GUESTS) and not has[oldKinds[t]] then
        local hash = hashOf(old, t)
        if not unit[hash] then
          hashes[#hashes + 1] = text(hash)
          unit[hash] = units + #hashes - 1
        end
        tiers[#tiers + 1] = format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f',
          old[t], unit[hash], old[t + 2], old[t + 3], old[t + 4], old[t + 5], ends)
      end
    end
    if #tiers == 0 then return words end
    words = words .. '+' .. #hashes .. ' ' .. #tiers .. ' ' .. concat(hashes, ' ') .. ' ' .. concat(tiers, ' ')
    return words, not plans[words] and listOf(words)
  end
  adopt(planOf(withKept()))

  -- Whether the plan has the tiers of the old one, which keep the same numbers: releases call by turns.
  local function hasSameTiers()
    if not kept.current or #plan ~= #old or units ~= old[3] or lengths.readings > 0 then return false end
    local isOld = {}
    for u = 1, units do isOld[old[4 + u]] = true end
    for u = 1, units do
      if not isOld[plan[4 + u]] then return false end
    end
    local _, kinds = namesOf(plan)
    for t = 5 + units, #plan, 6 do
      if not old.byKind[kinds[t]] or not plan.byKind[kinds[t]] then return false end
    end
    local words, log = body + head + 7 * units, 0
    for t = 5 + units, #old, 6 do
      if old[t] == LOG then
        log = log + 1
        local room, limit = capacities[log], plan[6 * plan.byKind[oldKinds[t]] + units + 1]
        local most = parse('>I7', state, words) + parse('>I7', state, body + head + 7 * old[t + 1])
        if min(most, max(room, old[t + 2])) > max(room, limit) then return false end -- stamps would be lost
        if room > 2 * limit or room < limit and room ~= ringFor(room, limit) then return false end
      end
      words = words + 7 * wordsOf[old[t]]
    end
    return true
  end
  local same = hasSameTiers()
  if kept.current and not same then
    catchUp(kept)
    adopt(present)
    sums = leases[1]
    adopt(planOf(withKept()))
  end

  -- The rule of an old calendar tier, without the periods, which this call does not contain.
  local function oldCalendar(longest, words)
    local ends, count, _, last = parse('>I7I7I7I7', words, 1)
    return {used = function(at) return at < min(ends - drift, last + longest) and count or 0 end}
  end

  -- The numbers that each old tier keeps.
  local tiers, words, groups = {}, body + head + 7 * old[3], body + (sizes(old, wordsOf, head))
  local ring, log = kept.rings, 0
  image = state -- logs read the old stamps from it
  for t = 5 + old[3], #old, 6 do
    local algorithm, unit = old[t], old[t + 1] + 1
    local n = hasGroups(algorithm) and 14 * parse('>I7', state, words + 7) or 0
    local size = 0
    if algorithm == LOG then
      log = log + 1
      size = capacities[log]
    end
    inFlight[unit] = parse('>I7', state, body + head + 7 * (unit - 1))
    local was = {
      algorithm = algorithm, limit = old[t + 2], window = old[t + 3], phase = old[t + 5],
      name = oldNames[t], kind = oldKinds[t], hash = hashOf(old, t), unit = unit, up = inFlight[unit],
      -- Format 1 has no word for the last landing in fixed windows; the frontier is its latest
      -- instant.
      words = sub(state, words, words + 7 * wordsOf[algorithm] - 1)
        .. rep(pack('>I7', frontier), WORDS[algorithm] - wordsOf[algorithm]),
      groups = groups, groupsEnd = groups + n,
      ring = sub(state, ring, ring + 7 * size - 1),
    }
    if same then
      was.used = 0
    elseif algorithm == CALENDAR then
      was.rule = oldCalendar(old[t + 4], was.words)
    else
      was.rule = old.rules and old.rules[#tiers + 1] or ruleOf(old, t)
      was.rule.load(was.words, 1, groups, ring - 1, size)
    end
    tiers[#tiers + 1] = was
    words, groups, ring = words + 7 * wordsOf[algorithm], groups + n, ring + 7 * size
  end
  local leasesAt = groups + 7 * ((1 + old[3]) * lengths.slots + (kept.poolNumbers + old[3]) * lengths.pool)
  local readingsAt = leasesAt + 7 * (kept.leaseNumbers + old[3]) * lengths.leases
  for i, r in ipairs(readRecords(state, readingsAt, lengths.readings, kept.readingNumbers)) do
    tiers[i].others = r[UNTIL] > frontier and r[OTHERS] or 0
  end
  local tailAt = readingsAt + 7 * kept.readingNumbers * lengths.readings
  for _, was in ipairs(same and {} or tiers) do
    was.others = was.others or 0
    local n = sums and sums[SUMS + was.unit] or 0
    if n >= WITH_ESTIMATES then was.up = was.up + n - WITH_ESTIMATES end
    was.used = was.rule.concurrent and 0 or was.rule.used(frontier) + was.others
  end

  -- The old tier that a tier takes over from, and whether both keep the same numbers. It is the old
  -- tier of the unit with the largest use: of those of the same kind if there are any, or else of
  -- those of the same name.
  local names, kinds = namesOf(plan)
  local function predecessor(t)
    local name, kind, hash, found, closest = names[t], kinds[t], hashOf(plan, t), nil, 0
    for _, was in ipairs(tiers) do
      local likeness = was.kind == kind and 3 or was.name == name and 2 or was.hash == hash and 1 or 0
      if likeness > closest or likeness > 0 and likeness == closest and was.used > found.used then found, closest = was, likeness end
    end
    if closest == 1 and plan[t] == CONCURRENCY then return nil, false end
    return found, closest == 3 or closest == 2 and not isBucket(found.algorithm)
  end

  -- The stamps of an old tier, oldest first, as bytes; nil if its algorithm keeps none.
  local function stampsOf(was)
    if was.algorithm == LOG then
      local length, next = parse('>I7I7', was.words, 1)
      local inOrder = sub(was.ring, 7 * next + 1) .. sub(was.ring, 1, 7 * next)
      return sub(inOrder, #inOrder - 7 * length + 1)
    elseif was.algorithm == WINDOW then
      local q, stamps = was.rule.groups, {}
      for i = q.first, q.last do
        local g = record(q, i)
        stamps[i] = rep(pack('>I7', q[g + 1]), q[g + 2])
      end
      return concat(stamps)
    end
  end

  -- How many stamps are before an instant, if at least the first ones are.
  local function stampsBefore(stamps, first, at)
    local few, many = first, #stamps / 7
    while few < many do
      local middle = divMod(few + many, 2)
      if parse('>I7', stamps, 7 * middle + 1) < at then few = middle + 1 else many = middle end
    end
    return few
  end

  -- A ring with the newest stamps. It has room for the stamps in view and in flight of a tier like
  -- the old one, and for all stamps that another old tier may count. A ring does not shrink while
  -- there are guest tiers, because other releases may admit more.
  local function newLog(was, like, limit, window)
    local kept = stampsOf(was)
    local room, stamps = max(limit, MOST_STAMPS), kept or ''
    stamps = stamps .. rep(pack('>I7', frontier), min(room, kept and was.others or was.used))
    local count = #stamps / 7
    if like then
      room = max(limit, count - stampsBefore(stamps, 0, frontier - window + 1) + was.up, plan.deciding < #rules and #was.ring / 7 or 0)
    else
      count = count - stampsBefore(stamps, 0, frontier - window + 1) -- what this tier never counts
      room = max(limit, min(room, max(count + was.up, #was.ring / 7, kept and was.limit or 0)))
    end
    local length = min(count, room)
    local size = room > limit and room or ringFor(length, limit)
    local newest = length > 0 and parse('>I7', stamps, #stamps - 6) or 0
    return pack('>I7I7I7', length, length % size, newest),
      sub(stamps, #stamps - 7 * length + 1) .. rep('\0', 7 * (size - length))
  end

  -- The words of a bucket that misses as many units as the old bucket, at the frontier: requests in
  -- flight land after it. The units come back in another time now. It is exact if less than one
  -- unit is missing from the last one.
  local function refill(was, limit, window, words)
    local tat, part = parse('>I7I7', was.words, 1)
    local ahead = max(0, tat - frontier + (part > 0 and 1 or 0))
    local most = parse('>I7', words, 1)
    ahead = ceilMulDiv(ceilMulDiv(ahead, was.limit, limit), window, was.window) + ceilMulDiv(was.others, window, limit)
    return frontier + ahead < most and pack('>I7I7', frontier + ahead, 0) or words
  end

  -- Lands the stamps of a log, or of another window no longer than this one, in groups.
  local function regroup(rule, was, window, precision)
    local stamps = stampsOf(was)
    local count, i = #stamps / 7, stampsBefore(stamps, 0, frontier - window + 1)
    while i < count do
      local at = parse('>I7', stamps, 7 * i + 1)
      local next = stampsBefore(stamps, i, at - at % precision + precision)
      rule.land(parse('>I7', stamps, 7 * next - 6), next - i)
      i = next
    end
  end

  -- The words of a fixed window with another phase: it ends when the old one would have ended, or
  -- at the first boundary after that.
  local function shift(was, phase)
    if was.phase <= phase then return was.words end
    return pack('>I7', parse('>I7', was.words, 1) + 1) .. sub(was.words, 8)
  end

  -- The rule of a tier that is no log, with the charges of the old tier.
  local function newRule(t, was, like)
    local algorithm, words = plan[t], unused
    if like and (algorithm == FIXED or algorithm == WEIGHTED) then
      words = shift(was, plan[t + 5])
    elseif like then
      words = was.words
    end
    local rule = plan.rules[(t + 1 - units) / 6]
    if rule.load(words, 1, like and was.groups or 1) then return nil end -- loadTiers returns the problem
    if not was then return rule end
    local charged = was.used
    if like then
      charged = was.others
    elseif algorithm == WINDOW and (was.algorithm == LOG or was.algorithm == WINDOW) and was.window <= plan[t + 3] then
      regroup(rule, was, plan[t + 3], plan[t + 5])
      charged = was.others
    end
    if charged > 0 then
      if rule.learns then rule.send(frontier, charged, 1) end
      rule.land(frontier, charged)
    end
    return rule
  end

  local tierWords, tierGroups, tierRings, sizesOfRings = {}, {}, {}, {}
  local first = cursor -- loadTiers reads the periods again
  for t = 5 + units, #plan, 6 do
    local algorithm, limit, window = plan[t], plan[t + 2], plan[t + 3]
    local was, like, words, ring
    if same then
      was = tiers[old.byKind[kinds[t]]]
    else
      was, like = predecessor(t)
    end
    if same then
      words = was.words
      tierGroups[#tierGroups + 1] = sub(state, was.groups, was.groupsEnd - 1)
      if algorithm == LOG then
        tierRings[#tierRings + 1], sizesOfRings[#sizesOfRings + 1] = was.ring, #was.ring / 7
      end
    elseif algorithm == LOG then
      words, ring = sub(unused, 1, 21), rep('\0', 7 * ringFor(0, limit))
      if was then words, ring = newLog(was, like, limit, window) end
      tierRings[#tierRings + 1] = ring
      sizesOfRings[#sizesOfRings + 1] = #ring / 7
    else
      local rule = newRule(t, was, like)
      words = rule and rule.words() or unused
      if was and not like and isBucket(algorithm) and isBucket(was.algorithm) then words = refill(was, limit, window, words) end
      if rule and rule.groups then putQueue(tierGroups, rule.groups) end
    end
    tierWords[#tierWords + 1] = words
  end
  cursor = first
  for i = #calendars, 1, -1 do calendars[i] = nil end

  local sameUnits = units == old[3]
  for u = 1, units do sameUnits = sameUnits and old[4 + u] % ESTIMATE == plan[4 + u] % ESTIMATE end

  -- Converts n records of some fixed numbers and the amounts of the old units.
  local function convertRecords(at, n, fixed)
    if sameUnits then return sub(state, at, at + 7 * n * (fixed + units) - 1) end
    local records = readRecords(state, at, n, fixed + old[3])
    for i, r in ipairs(records) do
      local new = {spread(r, 1, fixed)}
      for u = 1, units do
        new[fixed + u] = 0
        for o = 1, old[3] do
          if old[4 + o] % ESTIMATE == plan[4 + u] % ESTIMATE then new[fixed + u] = r[fixed + o] end
        end
      end
      records[i] = new
    end
    local parts = {}
    putRecords(parts, records, fixed + units)
    return concat(parts)
  end

  lengths.pool, lengths.readings = 0, 0
  promised, promisedOld, oldEnd = 0, 0, 0
  if mixed or later then
    lineOpen = 0
    if mixedUntil <= now then mixedPace, turnsEnd, delayedEnd, openTurns = paceOf(old), 0, 0, 0 end
    mixedPace = min(mixedPace, paceOf(plan))
    if mixed then mixedUntil = now + MIXED end
  end
  local leaseRecords, tailRuns = convertRecords(leasesAt, lengths.leases, kept.leaseNumbers), convertRecords(tailAt, lengths.tail, RUN)
  if kept.poolNumbers == 1 then
    inline = readRecords(leaseRecords, 1, lengths.leases, 3 + units)
    lengths.leases, leaseRecords = 0, ''
  end
  state = rep('\0', HEAD) .. convertRecords(body + head, 1, 0)
    .. concat(tierWords) .. concat(tierGroups)
    .. convertRecords(groups, lengths.slots, 1) .. leaseRecords .. tailRuns
  body, capacities = 1, sizesOfRings
  setImage(tierRings)
  return later
end
