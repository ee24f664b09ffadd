package prompt

// Status is what a Resolver has done since its start, for a person or a metric.
type Status struct {
	Models []ModelStatus         `json:"models"` // one for each folder, then "" for all models without one
	Caches map[string]CacheStats `json:"caches"` // segments, chains, answers
}

// ModelStatus is the ladder of a model.
type ModelStatus struct {
	Models     []string          `json:"models"`            // names that share the files; empty: models without any
	Rung       string            `json:"rung"`              // the best one that a request can have
	Verified   bool              `json:"verified"`          // an engine agreed with the files
	Problem    string            `json:"problem,omitempty"` // why the files are not used
	Resolved   map[string]uint64 `json:"resolved"`          // requests by rung
	Checks     map[string]uint64 `json:"checks,omitempty"`  // comparisons with engines by result: equal, different, failed
	Mismatches uint64            `json:"mismatches"`        // of Checks, those that were different
	Last       *Mismatch         `json:"last_mismatch,omitempty"`
}

// Name stands for the model in metrics: the first of its names, "other" for
// models without files.
func (m *ModelStatus) Name() string {
	if len(m.Models) == 0 {
		return "other"
	}
	return m.Models[0]
}

// CacheStats says what a cache did.
type CacheStats struct {
	Hits    uint64 `json:"hits"`
	Misses  uint64 `json:"misses"`
	Entries int    `json:"entries"`
	Bytes   int64  `json:"bytes"`
}

// Status returns what was counted so far.
func (r *Resolver) Status() Status {
	s := Status{Caches: map[string]CacheStats{
		"segments": r.segments.stats(), "chains": r.chains.stats(), "answers": r.engine.answers.stats(),
	}}
	for _, m := range r.folders {
		s.Models = append(s.Models, m.status())
	}
	other := ModelStatus{Rung: RungRender, Resolved: map[string]uint64{}}
	for i, name := range rungNames {
		other.Resolved[name] = r.others[i].Load()
	}
	s.Models = append(s.Models, other)
	return s
}

func (m *ownModel) status() ModelStatus {
	s := ModelStatus{Models: m.names, Rung: RungOwn, Resolved: map[string]uint64{}, Checks: map[string]uint64{}}
	for i, name := range rungNames {
		s.Resolved[name] = m.resolved[i].Load()
	}
	if err := m.trusted(); err != nil {
		s.Rung, s.Problem = RungRender, err.Error()
	} else if m.tmplErr != nil {
		s.Problem = m.tmplErr.Error() // of chat requests only
	}
	m.trust.mu.Lock()
	defer m.trust.mu.Unlock()
	s.Verified = m.trust.verified
	for result, n := range m.trust.checks {
		s.Checks[CheckResult(result).String()] = n
	}
	s.Mismatches = m.trust.checks[CheckDifferent]
	s.Last = m.trust.last
	return s
}
