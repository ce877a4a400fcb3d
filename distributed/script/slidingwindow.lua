-- slidingwindow.lua: a sliding log whose stamps within one precision form a group. Units: µs.
-- Twin: algorithms/slidingwindow.go.
-- Uses: flight.lua, queue.lua. Gives: slidingWindow.
--
-- total is the sum of all groups, some of which may have left the window. A group is its last stamp
-- and its units. unaligned is whether the provider's windows are of unknown phase.

local LATE_REPORT = 10000000 -- how late a report may be that is compared exactly

local function slidingWindow(unit, limit, window, precision, unaligned)
  local total, groups
  local rule = {unaligned = unaligned}

  function rule.load(words, at, groupsAt)
    local n
    total, n = parse('>I7I7', words, at)
    groups = queue(groupsAt, n, 2)
    rule.groups = groups
  end

  function rule.earliest(now, n)
    local excess = total + inFlight[unit] + n - limit
    if excess <= 0 then return now end
    for i = groups.first, groups.last do
      local g = record(groups, i)
      excess = excess - groups[g + 2]
      if excess <= 0 then return max(now, groups[g + 1] + window) end
    end
    return min(NEVER, nthLanding(unit, excess) + window)
  end

  function rule.land(at, n)
    -- Groups that have left stay while a late report of the provider may count them, or the last one
    -- if the provider has reported nothing yet.
    local left = #readings > 0 and at - min(window, LATE_REPORT) or at
    while groups.first < groups.last do
      local second = record(groups, groups.first + 1)
      if groups[second + 1] + window > left then break end
      total = total - groups[record(groups, groups.first) + 2]
      groups.first = groups.first + 1
    end
    total = total + n
    if groups.first <= groups.last then
      local g = lastRecord(groups)
      local last = groups[g + 1]
      if last - last % precision == at - at % precision then
        groups[g + 1], groups[g + 2] = at, groups[g + 2] + n
        return
      end
    end
    local g = append(groups)
    groups[g + 1], groups[g + 2] = at, n
  end

  function rule.used(now)
    local used = total
    for i = groups.first, groups.last do
      local g = record(groups, i)
      if groups[g + 1] + window > now then break end
      used = used - groups[g + 2]
    end
    return used
  end

  function rule.fresh(now)
    if groups.first > groups.last then return now end
    return groups[record(groups, groups.last) + 1] + window
  end

  -- Keeps the newest stamps.
  function rule.forget(now, keep)
    while rule.used(now) > keep do
      local g = record(groups, groups.first)
      local over = min(groups[g + 2], total - keep)
      groups[g + 2], total = groups[g + 2] - over, total - over
      if groups[g + 2] == 0 then groups.first = groups.first + 1 else rewrite(groups, groups.first) end
    end
  end

  -- Takes n units out of the oldest groups from an instant on, and then, as in slidinglog.lua, out of the
  -- groups before it.
  function rule.refund(now, from, n)
    if from + window <= now then return end
    local function take(i)
      local g = record(groups, i)
      local less = min(n, groups[g + 2])
      if less > 0 then
        n, groups[g + 2], total = n - less, groups[g + 2] - less, total - less
        rewrite(groups, i)
      end
    end
    for i = groups.first, groups.last do
      if groups[record(groups, i) + 1] >= from then take(i) end
    end
    for i = groups.last, groups.first, -1 do take(i) end
    while groups.first <= groups.last and groups[record(groups, groups.last) + 2] == 0 do
      groups.last = groups.last - 1
      groups.intact = min(groups.intact, groups.last)
    end
  end

  function rule.expires()
    local lands = lastLanding(unit)
    return lands and lands + window or rule.fresh(0)
  end

  function rule.words() return pack('>I7I7', total, groups.last - groups.first + 1) end

  function rule.clear()
    total, groups.first = 0, groups.last + 1
  end

  return rule
end
