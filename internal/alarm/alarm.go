// Package alarm wakes a goroutine at the microsecond where Go's timers do not: on Linux, where the
// runtime rounds the time that an idle program sleeps to whole milliseconds. A timer of 3.3 ms fires
// there after 4.1 ms. An alarm takes less processor time than a timer, too, but few can be in use.
package alarm

// Most is the largest number of alarms in use in a process. Each has a file descriptor.
const Most = 16
