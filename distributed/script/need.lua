-- need.lua: defines functions that few calls need when a call needs them. A line include 'x' stands
-- for the part x. Gives: defineOp, places, defineLeases, defineJoint.

-- Defines an operation other than r, b and j.
local function defineOp(op)
  if op == 'p' or op == 'e' or op == 'o' then
    include 'pause'
    include 'reading'
  elseif op == 'u' or op == 'x' then
    include 'cancel'
  elseif op == 'q' then
    include 'status'
  elseif op == 'c' then
    include 'charge'
  end
end

local places = {} -- the functions of lease.lua, once a plan needs them

local function defineLeases()
  include 'lease'
end

local function defineJoint(turnTo)
  include 'joint'
  return joint(turnTo)
end
