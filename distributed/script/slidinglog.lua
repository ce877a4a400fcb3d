-- slidinglog.lua: at most limit units in every half-open interval of one window. Units: µs.
-- Twin: algorithms/slidinglog.go.
-- Uses: flight.lua, pack.lua, queue.lua, state.lua.
-- Gives: image, slidingLog.
--
-- The newest stamps, limit of them or more, are in a ring with seven bytes for each, before the
-- body. The stamp before the newest limit ones must have left the window: a decision reads one
-- stamp, whatever the limit. Stamps that land in this call are written when the call ends. A ring
-- begins small and doubles until it has room for the limit. unaligned is whether the provider's
-- windows are of unknown phase.

local image -- the bytes before the body, if the whole state is to be written; or nil

local MOST_MOVED = 5000 -- once the refunds of a call have moved more stamps, it refunds no more

-- ring is where the ring begins in the state, capacity its room, length the number of stamps, place
-- the index of the next stamp, and newest the last stamp.
local function slidingLog(unit, limit, window, unaligned)
  local ring, capacity, most, length, place, newest -- most: the most stamps
  local instants, upTo, added -- the stamps of this call, in runs
  local moved -- the number of stamps that refunds of this call have moved
  local runsToSave, stampsToSave, placeToSave -- of the words that are saved
  local rule = {unaligned = unaligned}

  function rule.load(words, at, _, ringAt, stamps)
    length, place, newest = parse('>I7I7I7', words, at)
    ring, capacity, most, instants, upTo, added, moved = ringAt, stamps, max(limit, stamps), {}, {}, 0, 0
  end

  -- The stamp that is older than a number of newer ones, nil if there are fewer stamps.
  local function stamp(newer)
    if newer >= length then return nil end
    if newer < added then
      local run, last = 1, #upTo
      while run < last do
        local middle = math.floor((run + last) / 2)
        if upTo[middle] >= added - newer then last = middle else run = middle + 1 end
      end
      return instants[run]
    end
    local at = ring + 7 * ((place - 1 - newer) % capacity)
    if image then return (parse('>I7', image, at + 1)) end
    return (parse('>I7', call('GETRANGE', key, text(at), text(at + 6)), 1))
  end

  function rule.earliest(now, n)
    -- The unit that must have left the window has landed, or, if too few have, is in flight and
    -- leaves a window after it lands.
    local k = inFlight[unit] + n
    if k > limit then return min(NEVER, nthLanding(unit, k - limit) + window) end
    local s = stamp(limit - k)
    return s and max(now, s + window) or now
  end

  function rule.land(at, n)
    if n > most then n = most end
    added = added + n
    instants[#instants + 1], upTo[#upTo + 1] = at, added
    length, place, newest = min(most, length + n), (place + n) % capacity, at
  end

  -- The number of stamps after an instant.
  local function stampsAfter(at)
    local few, many = 0, length
    while few < many do
      local middle = math.floor((few + many) / 2)
      if stamp(middle) > at then few = middle + 1 else many = middle end
    end
    return few
  end

  function rule.used(now) return stampsAfter(now - window) end

  -- Removes the oldest of the stamps from an instant on: takes all of them off, and lands the others again.
  -- Units that have yet to land, in a slot of a longer guard, leave later than the stamps before that instant,
  -- which are then removed instead. A full log keeps its stamps until the oldest one has left the window: older
  -- ones that count may have made room for counted units. So do the last of many refunds in one call, which
  -- would take the server long.
  function rule.refund(now, from, n)
    if from + window <= now or length >= most and stamp(length - 1) + window > now or moved > MOST_MOVED then return end
    local off = max(stampsAfter(from - 1), min(n, length))
    moved = moved + off
    local kept, run = {}, #upTo
    for i = 0, off - n - 1 do
      while run > 1 and upTo[run - 1] >= added - i do run = run - 1 end
      kept[i + 1] = i < added and instants[run] or stamp(i)
    end
    length, place, added = length - off, (place - off) % capacity, max(0, added - off)
    while #upTo > 0 and (added == 0 or (upTo[#upTo - 1] or 0) >= added) do instants[#instants], upTo[#upTo] = nil, nil end
    if added > 0 then upTo[#upTo] = added end
    newest = stamp(0) or 0
    for i = #kept, 1, -1 do rule.land(kept[i], 1) end
  end

  function rule.fresh(now) return length > 0 and newest + window or now end

  -- Keeps the newest stamps.
  function rule.forget(now, keep)
    if rule.used(now) > keep then length = keep end
  end

  function rule.expires()
    local lands = lastLanding(unit)
    return lands and lands + window or rule.fresh(0)
  end

  function rule.grows() return length > capacity end

  -- Takes the bytes of the ring and its new place. Returns the capacity and the bytes of the ring,
  -- which may have grown.
  function rule.grow(bytes, ringAt)
    ring = ringAt
    if length > capacity then
      local old, first = max(0, length - added), 7 * ((place - added) % capacity)
      bytes = sub(bytes, first + 1) .. sub(bytes, 1, first)
      capacity = ringFor(length, most)
      bytes = sub(bytes, #bytes - 7 * old + 1) .. rep('\0', 7 * (capacity - old))
      place = (old + added) % capacity
    end
    return capacity, bytes
  end

  function rule.words()
    runsToSave, stampsToSave, placeToSave = #upTo, added, place
    return pack('>I7I7I7', length, place, newest)
  end

  -- The bytes of the stamps to save, up to the end of the ring and from its beginning, and where the
  -- first ones are in the ring.
  local function toSave()
    local runs, before = {}, 0
    for i = 1, runsToSave do
      runs[i] = rep(pack('>I7', instants[i]), upTo[i] - before)
      before = upTo[i]
    end
    local stamps = sub(concat(runs), -7 * capacity)
    local first = 7 * ((placeToSave - #stamps / 7) % capacity)
    return sub(stamps, 1, 7 * capacity - first), sub(stamps, 7 * capacity - first + 1), first
  end

  function rule.save()
    if stampsToSave == 0 then return end
    local last, wrapped, at = toSave()
    call('SETRANGE', key, text(ring + at), last)
    if #wrapped > 0 then call('SETRANGE', key, text(ring), wrapped) end
  end

  -- The bytes of the ring with the stamps to save.
  function rule.ringWith(bytes)
    if stampsToSave == 0 then return bytes end
    local last, wrapped, at = toSave()
    return wrapped .. sub(bytes, #wrapped + 1, at) .. last .. sub(bytes, at + #last + 1)
  end

  return rule
end
