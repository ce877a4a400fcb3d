-- need.lua: what few calls need is defined when one does. A line include 'x' is the part x.

-- Defines an operation other than r and b.
local function defineOp(op)
  if op == 'p' or op == 'e' or op == 'o' then
    include 'pause'
    include 'reading'
  elseif op == 'u' or op == 'x' then
    include 'unbook'
  elseif op == 'q' then
    include 'status'
  elseif op == 'c' then
    include 'charge'
  end
end

local places = {} -- the functions of lease.lua, in plans that need them

local function defineLeases()
  include 'lease'
end

local function defineJoint(turnTo)
  include 'joint'
  return joint(turnTo)
end
