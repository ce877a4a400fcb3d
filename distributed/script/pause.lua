-- pause.lua: the operations pause and end_pause: pauses and bans, and the probe, which goes first
-- after one. Units: µs.
-- Uses: call.lua, flight.lua, plan.lua, reading.lua, state.lua.
-- Gives: ops.pause, ops.end_pause, endProbe, the locals below.
-- Sets: ban, epoch, pause.

local news -- the message to publish to the fleet
local probe -- whether one request goes first after the pause
local probing -- whether the probe has gone, and the pause lasts until its response
local isProbe -- whether this call has reserved the probe
local notBefore -- the instant before which no request goes
local level -- the back-offs in a row since a request passed, up to MOST_DOUBLED

local MOST_DOUBLED = 15
local REPORT = 100000 -- how long after the response to a probe its report may arrive

-- Ends the wait for the probe.
local function endProbe()
  pause, probe, probing, news = 0, false, false, 'freed'
end

-- Passes the refusal that caused a pause to the learned tiers: the instant at which the request was admitted, and its
-- cost. Of a sequence of back-offs, only the first refusal teaches. One from after the frontier is of a state that is
-- lost. Returns whether all of them tolerate it.
local function refuse()
  local admitted, cost, tolerated = argument(), amounts(), nil
  advance(now)
  for i = 1, level == 0 and admitted <= frontier and #rules or 0 do
    if rules[i].learns and cost[unitOf[i]] > 0 then
      local has = rules[i].refuse(frontier, admitted, cost[unitOf[i]])
      if i <= plan.deciding then tolerated = tolerated ~= false and has end
    end
  end
  return tolerated
end

function ops.pause()
  local length, isBan, once, since, withProbe = argument(), argument(), argument(), argument(), argument()
  local most, atOnce = 0, 0
  if cursor <= #arguments then most, atOnce = argument(), argument() end
  local isVoid = cursor <= #arguments and refuse() and most > 0
  if most > 0 then length = atOnce == 1 and level == 0 and 0 or min(most, length * 2 ^ level) end
  local ends = min(now + length, LATEST)
  reply[9] = 0
  if isVoid then return end
  if probing then notBefore = now end -- the wait for a probe does not count as a pause
  local outdated = once == 1 and since ~= epoch or once == 2 and since <= epoch
  if not outdated and (ends > notBefore or withProbe == 1 and ends == now and notBefore == now) then
    pause, epoch, reply[9] = ends, once == 2 and since or max(epoch + 1, (divMod(wall, 1000000))) % 2 ^ 32, 1
    if isBan == 1 then ban = ends end
    probe, probing = probe or withProbe == 1, false
    if most > 0 then level = min(level + 1, MOST_DOUBLED) end
    local isBanned = ban > now
    news = format('pause %.0f %.0f %.0f', (isBanned and ban or ends) - now, isBanned and 1 or 0, epoch)
  end
end

function ops.end_pause()
  local since, how, longer = argument(), argument(), argument()
  reply[9] = probing and since == epoch and 1 or 0
  if how == 5 and since == epoch then level = 0 end
  if how == 0 then
    pause, ban, epoch, probe, probing, level = 0, 0, max(epoch + 1, since + 1, (divMod(wall, 1000000))) % 2 ^ 32, false, false, 0
    news = format('resume %.0f', epoch)
  elseif reply[9] == 1 and how == 4 then
    pause = max(pause, now + longer)
  elseif reply[9] == 1 then
    local longer = (how == 1 or how == 5) and awaitsProbe() and min(pause, now + REPORT) or 0
    if how == 6 then
      for i = 1, #readings do
        local r = readings[i]
        if r[PROBED_AT] > 0 then r[PROBE_AT], r[PROBED_AT] = r[PROBED_AT], 0 end
      end
    end
    if how == 3 then
      probe = false
    else
      endProbe()
      pause, probe, probing = longer, how == 2 or how == 6, longer > now
    end
  end
end
