-- status.lua: the operation status, the use of each tier. Units: µs.
-- Twin: algorithms/ledger.go, Usage.
-- Uses: call.lua, flight.lua, plan.lua, reading.lua, rule.lua, state.lua.
-- Gives: ops.status, whenUnused.

function ops.status()
  local n = #reply
  advance(now)
  for i = 1, plan.deciding do
    local used, next = rules[i].used(frontier) + othersUsed(i), admits(i, 1)
    if not rules[i].concurrent and not rules[i].learns then used = used + inFlight[unitOf[i]] end
    reply[n + 1], reply[n + 2], n = used, next < NEVER and next or -1, n + 3
  end
  for i = 1, plan.deciding do
    if rules[i].learns then
      local words = rules[i].words()
      for w = 1, WORDS[LEARNED] do reply[n + w] = parse('>I7', words, 7 * w - 6) end
      n = n + WORDS[LEARNED]
    end
  end
end

-- Replies when each tier is unused. For that it lands all requests in flight, after the state was
-- saved.
local function whenUnused()
  local at, resets = frontier, {}
  for i = 1, plan.deciding do resets[i] = othersUsed(i) > 0 and readings[i][UNTIL] or 0 end
  if slots.first <= slots.last then advance((landing(slots.last, 0))) end
  for i = 1, plan.deciding do
    local fresh = at
    if inFlight[unitOf[i]] > 0 then
      fresh = NEVER
    elseif reply[6 + 3 * i] > 0 then
      fresh = max(frontier, rules[i].fresh(frontier), resets[i])
    end
    reply[8 + 3 * i] = fresh < NEVER and fresh or -1
  end
end
