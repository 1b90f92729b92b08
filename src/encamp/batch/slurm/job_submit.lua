-- Made by 'encamp batch install' of the template that Encamp ships.
--
-- Encamp's part of Slurm's job_submit/lua: a job that names an environment, or that the site's
-- rules give one, begins with Encamp's starter, which has it run in a machine of that environment.
-- All other jobs are left exactly as they are.
--
-- A name is what --comment=env:NAME says, or a constraint (if the rules file says so), the job's
-- variable ENCAMP_ENVIRONMENT, or else the first rule that fits. env:none: no environment.
-- An environment whose machines are worker nodes is a feature of these: its jobs ask Slurm for it.
--
-- A site that has a job_submit.lua of its own either lets this one call it (SITE_SCRIPT), or calls
-- this one, by a last line in its own before any 'return':
--    dofile("/etc/slurm/encamp_job_submit.lua")

local RULES = "@ENCAMP_RULES@"
local SITE_SCRIPT = "@ENCAMP_SITE_SCRIPT@"

local LONGEST_LINE = 127 -- what the kernel reads of a script's first line
local NAME = "^[%w][%w%._-]*$"
local LONGEST_NAME = 64
local QUOTED = "^%s*[\"'`]+(.-)[\"'`]+%s*$"
local LEFT_ALONE = "none"
local MOST_SHOWN = 20

local function text_of(path)
   local file = io.open(path, "rb")
   local text = file and file:read("*a")
   if file then file:close() end
   return text
end

-- What the site's own script defines is called first, and may refuse.
local has_site = SITE_SCRIPT ~= "" and string.sub(SITE_SCRIPT, 1, 1) ~= "@"
local site_text = has_site and text_of(SITE_SCRIPT)
if has_site then dofile(SITE_SCRIPT) end
local site_submit = rawget(_G, "slurm_job_submit")
local site_modify = rawget(_G, "slurm_job_modify")

-- What is defined; it becomes something else.
local function defined(submit, modify)
   local was_submit, was_modify = rawget(_G, "slurm_job_submit"), rawget(_G, "slurm_job_modify")
   rawset(_G, "slurm_job_submit", submit)
   rawset(_G, "slurm_job_modify", modify)
   return was_submit, was_modify
end

-- Slurm itself notices changes of this file only. A script that it would not take leaves what was
-- there before, as Slurm does.
local function notice_site()
   local text = has_site and text_of(SITE_SCRIPT)
   if text == site_text then return end
   site_text = text
   local our_submit, our_modify = defined(nil, nil)
   local done, said = pcall(function() return assert(loadfile(SITE_SCRIPT))() end)
   local submit, modify = defined(our_submit, our_modify)
   if done and said ~= nil and said ~= slurm.SUCCESS then
      done, said = false, "it returns " .. tostring(said)
   elseif done and not (type(submit) == "function" and type(modify) == "function") then
      done, said = false, "it has to define slurm_job_submit and slurm_job_modify"
   end
   if done then
      site_submit, site_modify = submit, modify
      slurm.log_info("encamp: %s has changed and was read again.", SITE_SCRIPT)
   else
      slurm.log_error("encamp: %s has changed and cannot be read; what it was before goes on: %s",
         SITE_SCRIPT, tostring(said))
   end
end

-- Refusals are thrown; anything else that is thrown is a mistake, and refuses no other job.
local function refuse(text, ...)
   error({ sentence = "encamp: " .. string.format(text, ...) }, 0)
end

local function given(value)
   return value ~= nil and value ~= ""
end

local function checked(name, where)
   if not string.find(name, NAME) or #name > LONGEST_NAME then
      refuse("'%s' in %s is no name of an environment: letters, digits, '.', '_' and '-', 64 at most.",
         string.gsub(string.sub(name, 1, 80), "[^%w%._:@/+-]", "?"), where)
   end
   return name
end

-- env:NAME as a word of the comment.
local function in_comment(comment)
   local found
   for word in string.gmatch(comment or "", "[^%s,;]+") do
      if string.sub(word, 1, 4) == "env:" and (#word > 4 or comment == word) then
         local name = checked(string.sub(word, 5), "--comment")
         if found and found ~= name then
            refuse("The comment names two environments, '%s' and '%s'.", found, name)
         end
         found = name
      end
   end
   return found
end

-- The environments that a file describes: lines of YAML begin with their names. None, if there is no
-- such file, or if it is written in another way, so that some could be missed.
local function described_in(path)
   local text = text_of(path)
   if text == nil then return nil end
   local names = {}
   for line in string.gmatch(text, "[^\r\n]+") do
      local name = string.match(line .. " ", "^([%w][%w%._-]*)%s*:%s")
      if name then
         names[name] = true
      elseif not (string.find(line, "^%s*#") or string.find(line, "^%s*$") or line == "---"
         or (next(names) and string.find(line, "^%s"))) then
         return nil
      end
   end
   return names
end

-- Those that jobs may name. None: nobody knows here, and the host decides.
local function known_environments(rules)
   if rules.environments then return rules.environments end
   local known = {}
   for _, path in ipairs(rules.descriptions or {}) do
      local names = described_in(path)
      if names == nil then return nil end
      for name in pairs(names) do known[name] = true end
   end
   return next(known) and known or nil
end

local function has_nodes(name, rules)
   return rules.nodes ~= nil and rules.nodes[name] == true
end

-- An environment of another batch system's worker nodes.
local function has_other_nodes(name, rules)
   return rules.other_nodes ~= nil and rules.other_nodes[name] == true
end

-- Environments of worker nodes are not listed: whether there are such nodes is not known here.
local function refuse_unknown(name, known, rules)
   local names, listed = {}, {}
   for one in pairs(known) do names[#names + 1] = one end
   table.sort(names)
   local meant = ""
   for _, one in ipairs(names) do
      if not has_nodes(one, rules) and not has_other_nodes(one, rules) then
         listed[#listed + 1] = one
      end
      local short, long = string.lower(name), string.lower(one)
      if #short > #long then short, long = long, short end
      if meant == "" and string.sub(long, 1, #short) == short then
         meant = string.format(" Did you mean '%s'?", one)
      end
   end
   local more = #listed > MOST_SHOWN and ", ..." or "."
   refuse("There is no environment '%s' on this site.%s There are: %s", name, meant,
      table.concat(listed, ", ", 1, math.min(#listed, MOST_SHOWN)) .. more)
end

-- A comment that is nothing but env:NAME in another spelling was meant as that; unless it may be a
-- note of somebody else's, such as env=production. Of two pairs of quotes, the shell takes off one.
local function check_spelling(comment, known)
   local text = comment or ""
   local unquoted = string.match(text, QUOTED)
   if unquoted then text = in_comment(unquoted) and "env:" .. in_comment(unquoted) or unquoted end
   local word, sign, name = string.match(text, "^%s*(%a+)%s*([:=])%s*(%S*)%s*$")
   local meant = word and string.lower(word)
   if (meant ~= "env" and meant ~= "environment") or not string.find(name, NAME) then return end
   local sentence = string.format("The comment '%s' names no environment: to name one, write "
      .. "--comment=env:%s, with small letters, a colon, and neither blanks nor quotes in it.",
      comment, name)
   if word .. sign == "env:" or name == LEFT_ALONE or (known and known[name]) then
      refuse("%s", sentence)
   end
   slurm.log_user("%s", "encamp: " .. sentence)
end

local function refuse_combined(features, by)
   refuse("An environment can be combined with other constraints only by %s (not '%s'); "
      .. "--comment=env:none asks for no environment.", by,
      string.gsub(features, "[^%w%._:@/+&|%[%]()*-]", "?"))
end

-- A constraint that is an environment; what is left is the constraint for Slurm.
local function in_features(features, rules)
   if not rules.features or not rules.environments or not given(features) then return nil end
   local found
   local left = {}
   local any = false
   local function named(word) return rules.environments[word] and not has_nodes(word, rules) end
   for word in string.gmatch(features, "[%w%._-]+") do
      any = any or named(word)
   end
   if not any then return nil end
   if string.find(features, "[^%w%._&,-]") then refuse_combined(features, "'&'") end
   for word in string.gmatch(features, "[^&,]+") do
      if not named(word) then
         left[#left + 1] = word
      elseif found and found ~= word then
         refuse("The constraint names two environments, '%s' and '%s'.", found, word)
      else
         found = word
      end
   end
   return found, table.concat(left, "&")
end

-- A first line of ours, of a script that was submitted before, or that its user has written.
local function in_script(script, starter)
   if not given(script) then return nil end
   local line, rest = string.match(script, "^#!([^\n]*)\n(.*)$")
   if line == nil then return nil end
   local program, system, name = string.match(line, "^%s*(%S+)%s+(%l+):(%S*)%s*$")
   if program == nil or program ~= (starter or program) then return nil end
   if not starter and system ~= "slurm" and system ~= "pbs" then return nil end
   if name == "" then return nil, rest end
   return checked(name, "the script's first line"), rest
end

local function in_variables(job)
   if not given(job.script) then return nil end -- others have none that can be read
   local name = job.environment and job.environment["ENCAMP_ENVIRONMENT"]
   if not given(name) then return nil end
   return checked(name, "the variable ENCAMP_ENVIRONMENT")
end

-- What --vmenv names, which the plug-in tells in this way. Of jobs without a script it sees to
-- that itself.
local function in_options(job)
   for _, entry in pairs(job.spank_job_env or {}) do
      local name = string.match(entry, "^[%u_]*ENCAMP_VMENV=(.*)$")
      if given(name) then return checked(name, "--vmenv") end
   end
   return nil
end

local function fits(rule, job, uid)
   if given(rule.queue) then
      local there = false
      for partition in string.gmatch(job.partition or job.default_partition or "", "[^,]+") do
         there = there or partition == rule.queue
      end
      if not there then return false end
   end
   if given(rule.account) then
      -- Slurm writes accounts in small letters.
      local account = job.account or job.default_account or ""
      if string.lower(rule.account) ~= string.lower(account) then return false end
   end
   if given(rule.user) and rule.user ~= job.user_name and
      (rule.uid == nil or rule.uid ~= uid) then
      return false
   end
   if given(rule.group) and (rule.gid == nil or rule.gid ~= job.group_id) then return false end
   return true
end

-- Of a job that consists of several, the first has the script, and the others all that it names.
local function is_component(job)
   local offset = job.het_job_offset
   return offset ~= nil and offset > 0 and offset < slurm.NO_VAL
end

-- Which partition a job that names none gets.
local function default_partition(partitions)
   for name, partition in pairs(partitions or {}) do
      if partition.flag_default == 1 then return partition.name or name end
   end
   return nil
end

local function by_rules(job, partitions, uid, rules)
   local seen = setmetatable({ default_partition = default_partition(partitions) },
      { __index = function(_, key) return job[key] end })
   for _, rule in ipairs(rules.rules or {}) do
      if fits(rule, seen, uid) then
         return given(rule.environment) and rule.environment or LEFT_ALONE
      end
   end
   return nil
end

local function one_of(names)
   local chosen
   for _, name in ipairs(names) do
      if chosen and chosen ~= name then
         refuse("The job names two environments, '%s' and '%s'.", chosen, name)
      end
      chosen = name
   end
   return chosen
end

-- An environment of worker nodes that the constraint names.
local function nodes_asked_for(features, rules)
   for word in string.gmatch(given(features) and features or "", "[%w%._-]+") do
      if has_nodes(word, rules) then return word end
   end
   return nil
end

-- Have a job ask for nodes with a feature, whatever else it asks of them. Where Slurm cannot be asked
-- for both (brackets, numbers), a job that has to be on such nodes is refused.
local function ask_for(name, job, has_to)
   local features = job.features
   if not given(features) then
      job.features = name
   elseif string.find(features, "[^%w%._&|,-]") then
      if has_to then refuse_combined(features, "'&' and '|'") end
   elseif string.find(features, "|", 1, true) then
      job.features = name .. "&(" .. features .. ")"
   else
      for word in string.gmatch(features, "[^&,]+") do
         if word == name then return end
      end
      job.features = name .. "&" .. features
   end
end

-- With less memory than the smallest machine has, the job could only be held by its host. A job that
-- has a node to itself (shared is 0) gets memory for all of the node's processors.
local function check_memory(job, rules)
   local asked, option, times = job.min_mem_per_node, "--mem", 1
   if not asked and job.shared ~= 0 then
      asked, option, times = job.min_mem_per_cpu, "--mem-per-cpu", job.min_cpus or slurm.NO_VAL
   end
   local least = rules.least_memory
   if not least or not asked or asked == 0 or asked * times >= least then return end
   refuse("A machine needs at least %d MiB of memory, and the job asks for %d MiB. Ask for %s=%dM "
      .. "or more.", least, asked * times, option, math.ceil(least / times))
end

-- Slurm's own refusal does not tell what to do.
local function remark_nodes(name)
   slurm.log_user("encamp: Machines of environment '%s' are worker nodes, which -C %s asks for, too. "
      .. "If Slurm refuses the job for an 'Invalid feature specification', an administrator has to "
      .. "run 'encamp batch offer %s' first.", name, name, name)
end

-- For whoever reads the queue. What the site's own script has noted stays.
local function note(job, name)
   local before = job.admin_comment
   job.admin_comment = "env=" .. name .. (given(before) and "; " .. before or "")
end

local function submit(job, partitions, uid)
   local rules = dofile(RULES)
   local by_features, constraint = in_features(job.features, rules)
   local by_script, script = in_script(job.script, rules.starter or "")
   local by_nodes = nodes_asked_for(job.features, rules)
   local names = {}
   local by_option = in_options(job)
   for _, name in pairs({ in_comment(job.comment) or false, by_features or false,
      by_script or false, in_variables(job) or false,
      given(job.script) and by_option or false }) do
      if name then names[#names + 1] = name end
   end
   local named = one_of(names)
   if named and by_nodes and named ~= LEFT_ALONE then one_of({ by_nodes, named }) end
   local known = known_environments(rules)
   if not named and not by_option then check_spelling(job.comment, known) end
   for _, one in pairs({ named or false, by_option or false }) do
      if one and has_other_nodes(one, rules) then
         refuse("Machines of environment '%s' are worker nodes of Grid Engine: only its own jobs "
            .. "can ask for one, with 'qsub -l env=%s'.", one, one)
      end
      if known and one and one ~= LEFT_ALONE and not known[one] and not has_nodes(one, rules) then
         refuse_unknown(one, known, rules)
      end
   end
   local name = named
   if not named and not by_nodes then
      name = by_rules(job, partitions, uid, rules)
   end
   if name == LEFT_ALONE then name = nil end
   if script ~= nil then job.script = script end
   if by_features then job.features = constraint end
   local machine = (given(job.script) or rules.spank) and (by_option or name)
   if machine and machine ~= LEFT_ALONE and not has_nodes(machine, rules) then
      check_memory(job, rules)
      if given(rules.bait_feature) then ask_for(rules.bait_feature, job, named or by_option) end
   end
   if name == nil then return end

   if has_nodes(name, rules) then
      if named and not by_nodes then remark_nodes(name) end
      ask_for(name, job, true)
      return note(job, name)
   end
   if rules.environments and not rules.environments[name] then
      refuse_unknown(name, rules.environments, rules) -- It is a rule's.
   end
   if not given(job.script) then
      if rules.spank or is_component(job) then
         note(job, name)
      elseif named then
         refuse("Only a batch script can be in an environment here: srun and salloc cannot.")
      end
      return
   end
   local line = "#!" .. rules.starter .. " " .. (rules.system or "slurm") .. ":" .. name
   if #line > LONGEST_LINE then
      refuse("The name '%s' is too long for a first line of a script.", name)
   end
   job.script = line .. "\n" .. job.script
   note(job, name)
end

-- A job's script is not read again: naming another environment later would be of no effect.
local function modify(job, record)
   if not given(job.comment) then return end
   local name = in_comment(job.comment)
   local before = string.match(record.admin_comment or "", "^env=([%w%._-]+)")
   if name ~= nil and name ~= (before or LEFT_ALONE) then
      refuse("A job keeps the environment it was submitted with; submit it again.")
   end
end

-- Does a job name an environment, as far as that can be told without the rules? What is no name is
-- meant as one.
local function mentioned(job)
   local told, found = pcall(function()
      for _, name in pairs({ in_comment(job.comment) or false, in_script(job.script) or false,
         in_variables(job) or false, given(job.script) and in_options(job) or false }) do
         if name and name ~= LEFT_ALONE then return true end
      end
      return false
   end)
   return not told or found
end

local function guarded(job, action, ...)
   local done, thrown = pcall(action, ...)
   if done then return slurm.SUCCESS end
   if type(thrown) == "table" and thrown.sentence then
      slurm.log_user("%s", thrown.sentence)
      slurm.log_info("%s", thrown.sentence)
      return slurm.ERROR
   end
   slurm.log_error("encamp: %s", tostring(thrown))
   if not mentioned(job) then return slurm.SUCCESS end
   slurm.log_user("encamp: Environments are not available now: tell your administrator.")
   return slurm.ERROR
end

function slurm_job_submit(job, partitions, uid)
   notice_site()
   if site_submit then
      local said = site_submit(job, partitions, uid)
      if said ~= nil and said ~= slurm.SUCCESS then return said end
   end
   return guarded(job, submit, job, partitions, uid)
end

function slurm_job_modify(job, record, partitions, uid)
   notice_site()
   if site_modify then
      local said = site_modify(job, record, partitions, uid)
      if said ~= nil and said ~= slurm.SUCCESS then return said end
   end
   return guarded(job, modify, job, record)
end

return slurm.SUCCESS
