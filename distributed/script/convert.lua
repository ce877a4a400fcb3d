-- convert.lua: a changed policy keeps what has been spent. Units: µs.
--
-- A tier takes over from the first old one of its algorithm, window and unit; the
-- others begin fresh. What is on its way stays on its way. Clock, frontier, pause
-- and generation are not the policy's. What was given back is dropped: it is
-- charged in the old tiers, but maybe not in the new ones.

-- What each old tier remembers, and where in the body the slots begin.
local function remembered(old, rings)
  local list, ring, words, groups = {}, 1, HEAD + 7 * old[3] + 1, frontOf(old) + 1
  for t = 5 + old[3], #old, 6 do
    local algorithm, limit = old[t], old[t + 2]
    local size = algorithm == LOG and 7 * limit or 0
    local grouped = hasGroups(algorithm) and 14 * parse('>I7', body, words + 7) or 0
    list[#list + 1] = {
      name = concat({algorithm, old[t + 3], old[5 + old[t + 1]]}, ' '),
      limit = limit, phase = old[t + 5],
      words = sub(body, words, words + 7 * WORDS[algorithm] - 1),
      groups = sub(body, groups, groups + grouped - 1),
      ring = sub(rings, ring, ring + size - 1),
    }
    words, groups, ring = words + 7 * WORDS[algorithm], groups + grouped, ring + size
  end
  return list, groups
end

-- The newest stamps of a ring, in a ring of another size.
local function convertLog(old, limit)
  local length, place, newest = parse('>I7I7I7', old.words, 1)
  local inOrder = sub(old.ring, 7 * place + 1) .. sub(old.ring, 1, 7 * place)
  length = min(length, limit)
  old.ring = sub(inOrder, #inOrder - 7 * length + 1) .. rep('\0', 7 * (limit - length))
  old.words = pack('>I7I7I7', length, length % limit, newest)
end

-- The units that are missing from a bucket take another time to come back.
local function convertBucket(old, limit, at)
  local tat, part = parse('>I7I7', old.words, 1)
  local ahead = max(0, tat - at + (part > 0 and 1 or 0))
  old.words = pack('>I7I7', at + ceilMulDiv(ahead, old.limit, limit), 0)
end

-- A window of the clock ends where it ended, or with the first one after that.
local function convertAligned(old, phase)
  local index = parse('>I7', old.words, 1)
  if old.phase > phase then old.words = pack('>I7', index + 1) .. sub(old.words, 8) end
end

-- The records of a part of the body, with the amounts of the new units after the
-- first numbers of each.
local function convertRecords(at, n, fixed, oldUnits, oldUnitOf)
  local out, width = {}, fixed + oldUnits
  for i = 1, n do
    local r = {parse(sevens(width), body, at + 7 * width * (i - 1))}
    local new = {spread(r, 1, fixed)}
    for u = 1, units do new[fixed + u] = oldUnitOf[u] and r[fixed + oldUnitOf[u]] or 0 end
    out[i] = pack(sevens(fixed + units), spread(new))
  end
  return concat(out)
end

-- Makes body that of the new plan, and returns the rings before it.
local function convert(old, rings, at)
  local oldUnits, oldUnitOf = old[3], {}
  for u = 1, units do
    for o = 1, oldUnits do
      if old[4 + o] == plan[4 + u] then oldUnitOf[u] = o end
    end
  end
  local list, rest = remembered(old, rings)
  local words, groups, ringsNew, concurrent = {}, {}, {}, false
  for t = 5 + plan[3], #plan, 6 do
    local algorithm, limit, tier = plan[t], plan[t + 2], nil
    local name = concat({algorithm, plan[t + 3], plan[5 + plan[t + 1]]}, ' ')
    for i = #list, 1, -1 do
      if list[i].name == name then tier = list[i] end
    end
    if not tier then
      tier = {words = rep('\0', 7 * WORDS[algorithm]), groups = '',
        ring = algorithm == LOG and rep('\0', 7 * limit) or ''}
    else
      local copy = {}
      for k, v in pairs(tier) do copy[k] = v end
      tier = copy
      if algorithm == LOG then convertLog(tier, limit) end
      if isBucket(algorithm) then convertBucket(tier, limit, at) end
      if isAligned(algorithm) then convertAligned(tier, plan[t + 5]) end
    end
    words[#words + 1], groups[#groups + 1] = tier.words, tier.groups
    ringsNew[#ringsNew + 1] = tier.ring
    concurrent = concurrent or algorithm == CONCURRENCY
  end
  local slots, pooled, leased = parse('>I2I1I2', body, COUNTS)
  local up = convertRecords(HEAD + 1, 1, 0, oldUnits, oldUnitOf)
  local flying = convertRecords(rest, slots, 1, oldUnits, oldUnitOf)
  local held = ''
  if concurrent then
    local at = rest + 7 * (1 + oldUnits) * (slots + pooled)
    held = convertRecords(at, leased, 3, oldUnits, oldUnitOf)
  else
    leased = 0
  end
  body = sub(body, 1, COUNTS - 1) .. pack('>I2I1I2', slots, 0, leased)
    .. up .. concat(words) .. concat(groups) .. flying .. held
  return concat(ringsNew)
end
