package agent

import "time"

// LookEvery sets how often a waiting agent looks for keys.
func (a *Agent) LookEvery(d time.Duration) { a.again = d }
