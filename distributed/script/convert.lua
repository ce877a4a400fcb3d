-- convert.lua: a changed policy keeps what has been spent. Units: µs.
--
-- A tier takes over from the first old one of its algorithm, window (and period and
-- zone, where it is of the calendar) and unit; the
-- others begin fresh. What is on its way stays on its way. Clock, frontier, pause
-- and generation are not the policy's. What was given back is dropped: it is
-- charged in the old tiers, but maybe not in the new ones. So are the readings.

if old then
  local function nameOf(p, t)
    return table.concat({p[t], p[t + 3], p[5 + p[t + 1]] % ESTIMATE, p[t] == CALENDAR and text(p[t + 5]) or nil}, ' ')
  end

  -- What each old tier remembers, by name.
  local remembered, words, groups = {}, body + head + 7 * old[3], body + (sizes(old, wordsOf, head))
  local ring, log = oldRings, 0
  for t = 5 + old[3], #old, 6 do
    local algorithm, limit = old[t], old[t + 2]
    local n = hasGroups(algorithm) and parse('>I7', state, words + 7) or 0
    local size = 0
    if algorithm == LOG then
      log = log + 1
      size = 7 * capacities[log]
    end
    remembered[nameOf(old, t)] = remembered[nameOf(old, t)] or {
      limit = limit,
      up = parse('>I7', state, body + head + 7 * old[t + 1]),
      phase = old[t + 5],
      -- Format 1 had no word for the last landing of windows of the clock, which was until now.
      words = string.sub(state, words, words + 7 * wordsOf[algorithm] - 1)
        .. string.rep(pack('>I7', frontier), WORDS[algorithm] - wordsOf[algorithm]),
      groups = string.sub(state, groups, groups + 14 * n - 1),
      ring = string.sub(state, ring, ring + size - 1),
    }
    words, groups, ring = words + 7 * wordsOf[algorithm], groups + 14 * n, ring + size
  end

  -- The newest stamps of a ring, in a ring of another size. All that are in view or
  -- on their way have a place, be they more than limit: while a fleet changes its
  -- policy, the next call may be one of the larger limit again.
  local function resize(was, limit, window)
    local length, next, newest = parse('>I7I7I7', was.words, 1)
    local inOrder = string.sub(was.ring, 7 * next + 1) .. string.sub(was.ring, 1, 7 * next)
    local few, many = 0, length -- how many are in view
    while few < many do
      local middle = few + (divMod(many - few, 2))
      local stamp = parse('>I7', inOrder, #inOrder - 7 * middle - 6)
      if stamp > frontier - window then few = middle + 1 else many = middle end
    end
    local capacity = math.max(limit, few + was.up)
    length = math.min(length, capacity)
    return pack('>I7I7I7', length, length % capacity, newest),
      string.sub(inOrder, #inOrder - 7 * length + 1) .. string.rep('\0', 7 * (capacity - length))
  end

  -- The units that are missing from a bucket take another time to come back, from
  -- the frontier on: what is on its way lands after that.
  local function refill(was, limit)
    local tat, part = parse('>I7I7', was.words, 1)
    local ahead = math.max(0, tat - frontier + (part > 0 and 1 or 0))
    return pack('>I7I7', frontier + ceilMulDiv(ahead, was.limit, limit), 0)
  end

  -- A window of the clock ends where it would have, or at the first boundary after.
  local function shift(was, phase)
    if was.phase <= phase then return was.words end
    return pack('>I7', parse('>I7', was.words, 1) + 1) .. string.sub(was.words, 8)
  end

  local tierWords, tierGroups, tierRings, concurrent = {}, {}, {}, estimates
  capacities, image = {}, start
  for t = 5 + units, #plan, 6 do
    local algorithm, limit = plan[t], plan[t + 2]
    local was = remembered[nameOf(plan, t)]
    local words, ring = string.rep('\0', 7 * WORDS[algorithm]), ''
    if was then words = was.words end
    if algorithm == LOG then
      ring = string.rep('\0', 7 * limit)
      if was then words, ring = resize(was, limit, plan[t + 3]) end
      capacities[#capacities + 1] = #ring / 7
      image = image .. pack('>I7', #ring / 7)
    elseif was and isBucket(algorithm) then
      words = refill(was, limit)
    elseif was and (algorithm == FIXED or algorithm == WEIGHTED) then
      words = shift(was, plan[t + 5])
    end
    tierWords[#tierWords + 1], tierRings[#tierRings + 1] = words, ring
    tierGroups[#tierGroups + 1] = was and was.groups or ''
    concurrent = concurrent or algorithm == CONCURRENCY
  end

  -- n records whose first numbers stay and whose amounts are told by unit.
  local function retell(at, n, fixed)
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
    return recordBytes(records, fixed + units)
  end

  local leasesAt = groups + 7 * (1 + old[3]) * (slotCount + poolCount)
  poolCount, leaseCount, readingCount = 0, concurrent and leaseCount or 0, 0
  state = string.sub(state, body, body + FIRST_HEAD - 1) .. '\0' .. retell(body + head, 1, 0)
    .. table.concat(tierWords) .. table.concat(tierGroups)
    .. retell(groups, slotCount, 1) .. retell(leasesAt, leaseCount, 3)
  body, image = 1, image .. table.concat(tierRings)
end
