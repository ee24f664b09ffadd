package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Write writes the report for a person: each subject, its checks, and under those
// that are not well what to do.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	last := ""
	for _, c := range r.Checks {
		if c.Subject != last {
			if last != "" {
				b.WriteByte('\n')
			}
			fmt.Fprintln(&b, c.Subject)
			last = c.Subject
		}
		mark := string(c.Status)
		if c.Status == Failed {
			mark = "FAILED"
		}
		fmt.Fprintf(&b, "  %-11s  %-15s  %s\n", mark, c.Check, c.Found)
		if c.Remedy != "" {
			fmt.Fprintf(&b, "  %-11s  %-15s  → %s\n", "", "", c.Remedy)
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %s, %d failed, %d not checked\n", r.Count(OK), plural(r.Count(Warning), "warning"), r.Count(Failed), r.Count(NotChecked))
	_, err := io.WriteString(w, b.String())
	return err
}
