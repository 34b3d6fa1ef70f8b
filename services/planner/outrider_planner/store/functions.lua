#!lua name=outrider_v1

-- Adds integer sums to the newest bucket of a scope, exactly once per (writer, sequence).
-- KEYS: index of buckets, last sequence of the writer, prefix of the buckets' hashes; all three
-- carry the scope's hash tag, so the hash that is chosen here lies in the same slot.
-- ARGV: bucket length in s, time to live in s, sequence, then field and amount in turn.
-- Nothing is written before everything was checked: an error half-way would leave sums applied
-- whose sequence is not, and they would be applied again.
local MOST_AMOUNT = 9007199254740991

local function amount_fault(args)
  for i = 5, #args, 2 do
    local amount = string.match(args[i], '^%d+$') and tonumber(args[i])
    if not amount or amount > MOST_AMOUNT then
      return 'ERR amount of ' .. args[i - 1] .. ' must be a whole number below 2^53'
    end
  end
  return #args % 2 == 0 and 'ERR a field without an amount' or nil
end

local function add(keys, args)
  local bucket_s, keep_s = tonumber(args[1]), tonumber(args[2])
  local sequence = tonumber(args[3])
  local last = tonumber(redis.call('GET', keys[2]) or '0')
  if sequence <= last then
    return 0
  end
  local fault = amount_fault(args)
  if fault then
    return redis.error_reply(fault)
  end
  -- The server's clock, never a planner's; and never back, should the server's clock step back.
  local time = redis.call('TIME')
  local bucket = math.floor((tonumber(time[1]) + tonumber(time[2]) / 1e6) / bucket_s)
  local newest = redis.call('ZRANGE', keys[1], -1, -1)
  if newest[1] then
    bucket = math.max(bucket, tonumber(newest[1]))
  end
  local name = string.format('%d', bucket)
  local sums = keys[3] .. name
  for i = 4, #args, 2 do
    -- A sum that is full, or that is none, stays as it is; all others and the sequence go on.
    redis.pcall('HINCRBY', sums, args[i], args[i + 1])
  end
  local ttl = string.format('%d', math.ceil(keep_s))
  redis.call('EXPIRE', sums, ttl)
  redis.call('ZADD', keys[1], bucket, name)
  redis.call('ZREMRANGEBYSCORE', keys[1], '-inf', bucket - math.floor(keep_s / bucket_s))
  redis.call('EXPIRE', keys[1], ttl)
  redis.call('SET', keys[2], string.format('%d', sequence), 'EX', ttl)
  return 1
end

redis.register_function('outrider_v1_add', add)
