-- anchoredwindow.lua: at most limit units in the window that opens with the first request. Units:
-- µs.
-- Twin: algorithms/anchoredwindow.go.
-- Uses: flight.lua, plan.lua, queue.lua, slidingwindow.lua.
-- Gives: anchoredWindow.
--
-- The window closes at lo at the earliest, a window after its first request was admitted, and at hi
-- at the latest, a window after it was certainly open. If there is a guard, only reports of the
-- provider prove that it was open. Until a report does, any request may have opened the window,
-- even the last one, and the rolling bound holds. A request that lands from lo on may have opened
-- another window.

local OPENING = NEVER -- the value of hi for a window that may not be open

local function anchoredWindow(unit, limit, window, precision)
  local rolling = slidingWindow(unit, limit, window, precision)
  local groups, lo, hi
  local rule = {land = rolling.land, forget = rolling.forget, reopens = true}

  function rule.load(words, at, groupsAt)
    rolling.load(words, at, groupsAt)
    groups = rolling.groups
    rule.groups = groups
    lo, hi = parse('>I7I7', words, at + 14)
  end

  -- When the last window that may be open closes, if the last request lands at an instant.
  local function closes(last)
    return last < lo and min(hi, last + window) or last + window
  end

  -- The same for the landed requests; now if there are none.
  local function closed(now)
    if groups.first > groups.last then return now end
    return closes(groups[record(groups, groups.last) + 1])
  end

  function rule.earliest(now, n)
    if estimating[unit] and open[unit] > 0 then return rolling.earliest(now, n) end -- the landing of an estimate is unknown
    local last = lastLanding(unit)
    local opens = last and max(last, closes(last)) or max(now, closed(now))
    return min(opens, rolling.earliest(now, n))
  end

  function rule.send(at)
    if inFlight[unit] == 0 and closed(at) <= at then
      lo, hi = at + window, OPENING
      rolling.clear()
    end
  end

  function rule.refund(now, from, n)
    if from >= lo - window then rolling.refund(now, from, n) end -- else another window has opened since
  end

  -- A response proves that a window was open at by. It is this window unless the request was
  -- admitted, at since, before it.
  function rule.proveOpen(since, by)
    if since >= lo - window then hi = min(hi, max(lo, by + window)) end
  end

  -- It is unknown whether the window is open. The next request that lands proves it again.
  function rule.doubtOpen() hi = OPENING end

  -- The provider's window has ended, and it is unknown when the next one opens: requests in flight
  -- may open it, and so may those that landed since the report of that end.
  function rule.reopen() lo, hi = NEVER, OPENING end

  -- The earliest instant at which the window that is open now may have opened.
  function rule.opened(now) return max(now - window + 1, lo < NEVER and lo - window or 0) end

  function rule.used(now)
    if closed(now) <= now and inFlight[unit] == 0 then return 0 end
    return rolling.used(now)
  end

  function rule.fresh(now) return max(now, closed(now)) end

  function rule.expires(resets)
    if resets then return rolling.expires() end -- it may be reopened
    local last = lastLanding(unit)
    return last and closes(last) or closed(0)
  end

  function rule.words() return rolling.words() .. pack('>I7I7', lo, hi) end

  return rule
end
