-- need.lua: defines functions that few calls need when a call needs them. A line include 'x' stands
-- for the part x.
-- Uses: call.lua, flight.lua.
-- Gives: defineCancel, defineOp, places, defineLeases, defineEstimates, defineBundle.
-- Sets: crossing.

local function defineCancel()
  include 'cancel'
end

-- Defines an operation other than reserve, budget and bundle.
local function defineOp(op)
  if op == 'pause' or op == 'end_pause' or op == 'observe' then
    include 'pause'
    include 'reading'
  elseif op == 'cancel' or op == 'refund' or op == 'refund_old' then
    defineCancel()
  elseif op == 'status' then
    include 'status'
  elseif op == 'count' then
    include 'count'
  elseif op == 'leave' then
    include 'leave'
  elseif op == 'lease' then
    function ops.lease() crossing = true end
  elseif op == 'forget' then
    function ops.forget()
      for i = 1, #rules do
        if rules[i].learns then rules[i].unlearn() end
      end
    end
  end
end

local places = {} -- the functions of lease.lua, once a plan needs them

local function defineLeases()
  include 'lease'
end

local function defineEstimates()
  if places.keepSums then return end
  include 'estimate'
end

local function defineBundle(turnTo, addCrossings)
  include 'bundle'
  return newBundle(turnTo, addCrossings)
end
