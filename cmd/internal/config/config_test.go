package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// level is a type that reads itself from text.
type level int

func (l *level) UnmarshalText(b []byte) error {
	switch string(b) {
	case "low":
		*l = 1
	case "high":
		*l = 2
	default:
		return errors.New("is not a level; write low or high")
	}
	return nil
}

func (l level) MarshalText() ([]byte, error) {
	return []byte(map[level]string{1: "low", 2: "high"}[l]), nil
}

type Shared struct {
	Pool string `json:"pool" help:"pool of the endpoints"`
}

type sample struct {
	Shared
	Listen string   `json:"listen" help:"address to serve on"`
	Join   []string `json:"join" help:"gossip peers"`
	Hold   struct {
		Max      time.Duration `json:"max" help:"longest hold"`
		Requests int           `json:"requests" help:"most held requests"`
	} `json:"hold"`
	Shares      map[string]int `json:"shares" help:"share by flow"`
	Margin      float64        `json:"margin" help:"margin | of the best"`
	Port        uint16         `json:"port" help:"port"`
	Speculate   bool           `json:"speculate" help:"speculation"`
	Level       level          `json:"level" help:"how much"`
	MaxModelLen int            `help:"tokens"`
	Handler     func()         `json:"-"`
}

type sampleFault struct{ field, value, problem, remedy string }

func (f sampleFault) Error() string   { return f.field + ": " + f.problem }
func (f sampleFault) Field() string   { return f.field }
func (f sampleFault) Value() string   { return f.value }
func (f sampleFault) Problem() string { return f.problem }
func (f sampleFault) Remedy() string  { return f.remedy }

func (s sample) Validate() error {
	var errs []error
	if s.Hold.Requests < 0 {
		errs = append(errs, sampleFault{"hold.requests", fmt.Sprint(s.Hold.Requests), "is negative", "write 0 or more"})
	}
	if s.Pool == "" {
		errs = append(errs, errors.New("a pool is needed"))
	}
	return fmt.Errorf("sample: %w", errors.Join(errs...))
}

// Validate above wraps even when nothing is wrong, so valid goes around it.
type valid struct {
	sample
	Extra int `json:"extra"`
}

func (valid) Validate() error { return nil }

func defaults() valid {
	var v valid
	v.Pool, v.Listen, v.Hold.Max, v.Hold.Requests, v.Level = "default", ":8080", 10*time.Second, 1000, 1
	return v
}

func parse(t *testing.T, cfg any, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	Bind(fs, cfg)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadOrder(t *testing.T) {
	path := writeFile(t, `
pool: file
listen: :1
join: [a, b]
hold: {max: 1s, requests: 7}
shares: {meta-llama/Llama-3.1-8B: 3, b.c: 4}
margin: 0.5
level: high
max-model-len: 4096
`)
	t.Setenv("GRAPEVINE_LISTEN", ":2")
	t.Setenv("GRAPEVINE_HOLD_MAX", "2s")
	t.Setenv("GRAPEVINE_PORT", "tcp://10.0.0.1:80") // a service link, not a setting
	cfg := defaults()
	fs := parse(t, &cfg, "--config", path, "--hold-max=3s", "--speculate", "--join", "c,d", "--join=e")
	if err := Load(fs, &cfg); err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Pool, want.Listen, want.Join = "file", ":2", []string{"c", "d", "e"}
	want.Hold.Max, want.Hold.Requests = 3*time.Second, 7
	want.Shares = map[string]int{"meta-llama/Llama-3.1-8B": 3, "b.c": 4}
	want.Margin, want.Speculate, want.Level, want.MaxModelLen = 0.5, true, 2, 4096
	if diff := cmp.Diff(want, cfg, cmp.AllowUnexported(valid{})); diff != "" {
		t.Errorf("resolved configuration (-want +got):\n%s", diff)
	}
}

func TestLoadReportsAllFaults(t *testing.T) {
	path := writeFile(t, `
pol: x
hold: 5
speculate: maybe
nonsense-here: {a: 1}
`)
	t.Setenv("GRAPEVINE_HOLD_REQUEST", "5")    // one letter short
	t.Setenv("GRAPEVINE_SOMETHING_ELSE", "no") // not ours
	t.Setenv("GRAPEVINE_SHARES", "a=1,b=x")
	var cfg sample
	cfg.Level = 1
	fs := parse(t, &cfg, "--config", path, "--hold-max=10", "--port=70000", "--hold-requests=-1", "--level=mid")
	err := Load(fs, &cfg)
	var all *Error
	if !errors.As(err, &all) {
		t.Fatalf("got %v, want *Error", err)
	}
	got := strings.ReplaceAll(err.Error(), path, "FILE")
	want := `10 faults in the configuration:
  hold = "5" is a group of settings, not one (in FILE); write its settings indented under it
  nonsense-here = "map[a:1]" is not a setting (in FILE); remove it; --help lists what there is
  pol = "x" is not a setting (in FILE); write pool
  speculate = "maybe" is not a yes or no (in FILE); write true or false
  GRAPEVINE_HOLD_REQUEST = "5" is not a setting (in the environment); write GRAPEVINE_HOLD_REQUESTS
  shares = "a=1,b=x" item "b" is not a whole number in range (from GRAPEVINE_SHARES); write a whole number from -9223372036854775808 to 9223372036854775807
  hold.max = "10" has no unit (from --hold-max); write it with one: 10s, 250ms, 1m30s
  port = "70000" is not a whole number in range (from --port); write a whole number from 0 to 65535
  level = "mid" is not a level (from --level); write low or high
  hold.requests = "-1" is negative; write 0 or more (--hold-requests, GRAPEVINE_HOLD_REQUESTS or hold.requests in the file)`
	// Pool is empty too, which the sample reports without a field.
	want = strings.Replace(want, "10 faults", "11 faults", 1) + "\n  a pool is needed"
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestLoadFileFaults(t *testing.T) {
	tests := []struct{ name, path, want string }{
		{"absent", filepath.Join(t.TempDir(), "none.yaml"), "give a file that exists"},
		{"no YAML", writeFile(t, "a: [1"), "correct the YAML"},
		{"not a mapping", writeFile(t, "- 1"), "correct the YAML"},
		{"twice", writeFile(t, "pool: a\npool: b"), "already defined"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := defaults()
			err := Load(parse(t, &cfg, "--config", tt.path), &cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	detail := sampleFault{"f", "v", "p", "r"}
	tests := []struct {
		name string
		err  error
		want []Fault
	}{
		{"none", nil, nil},
		{"plain", errors.New("x"), []Fault{{Problem: "x"}}},
		{"wrapped plain keeps its context", fmt.Errorf("a: %w", errors.New("b")), []Fault{{Problem: "a: b"}}},
		{"wrapped joined", fmt.Errorf("a: %w", errors.Join(detail, errors.New("b"))), []Fault{{"f", "v", "p", "r"}, {Problem: "b"}}},
		{"our own", errors.Join(Fault{"f", "v", "p", "r"}), []Fault{{"f", "v", "p", "r"}}},
		{"nested", errors.Join(errors.Join(detail), detail), []Fault{{"f", "v", "p", "r"}, {"f", "v", "p", "r"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Faults(tt.err)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestStart(t *testing.T) {
	tests := []struct {
		name        string
		args        []string
		run         bool
		code        int
		stdout, err string
	}{
		{"runs", []string{"--pool=x"}, true, 0, "", ""},
		{"version", []string{"--version"}, false, 0, "test v1\n", ""},
		{"help", []string{"--help"}, false, 0, "What it does.\n\nFlags of test:\n", ""},
		{"flags in the help", []string{"--help"}, false, 0, "--hold-max duration", ""},
		{"unknown flag", []string{"--nope"}, false, 2, "", "unknown flag"},
		{"argument", []string{"nope"}, false, 2, "", "unexpected argument"},
		{"fault", []string{"--hold-max=x"}, false, 2, "", "is not a duration"},
		{"print", []string{"--print-config"}, false, 0, "# longest hold\n  max: 10s\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := defaults()
			var stdout, stderr bytes.Buffer
			fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
			run, code := Start(fs, "What it does.", tt.args, &cfg, "v1", &stdout, &stderr)
			if run != tt.run || code != tt.code {
				t.Errorf("got run %v code %d, want %v %d; stderr %s", run, code, tt.run, tt.code, stderr.String())
			}
			if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.err) {
				t.Errorf("stdout %q, stderr %q; want %q, %q", stdout.String(), stderr.String(), tt.stdout, tt.err)
			}
		})
	}
}

func TestPrintReadsBack(t *testing.T) {
	want := defaults()
	want.Join = []string{"a", "no"}
	want.Shares = map[string]int{"x.y": 1, "true": 2}
	want.Listen, want.Margin = "0123", 1e-7
	var out bytes.Buffer
	if err := Print(&out, want); err != nil {
		t.Fatal(err)
	}
	got := defaults()
	if err := Load(parse(t, &got, "--config", writeFile(t, out.String())), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(valid{})); diff != "" {
		t.Errorf("read back (-want +got):\n%s\n%s", diff, out.String())
	}
}

func TestMarkdown(t *testing.T) {
	got := Markdown(defaults())
	for _, row := range []string{
		"| `hold.max` | `--hold-max` (duration) | `GRAPEVINE_HOLD_MAX` | `10s` | longest hold |",
		"| `margin` | `--margin` (number) | `GRAPEVINE_MARGIN` | `0` | margin \\| of the best |",
		"| `join` | `--join` (strings) | `GRAPEVINE_JOIN` | none | gossip peers |",
		"| `max-model-len` | `--max-model-len` (int) | `GRAPEVINE_MAX_MODEL_LEN` | `0` | tokens |",
	} {
		if !strings.Contains(got, row+"\n") {
			t.Errorf("no row %s in\n%s", row, got)
		}
	}
}

func TestBindPanics(t *testing.T) {
	tests := []struct {
		name string
		cfg  any
	}{
		{"not a struct", 1},
		{"function", struct{ F func() }{}},
		{"one name twice", struct {
			AB int `json:"a-b"`
			A  struct{ B int }
		}{}},
		{"reserved name", struct{ Config string }{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			Bind(pflag.NewFlagSet("", pflag.ContinueOnError), tt.cfg)
		})
	}
}

func TestWatch(t *testing.T) {
	path := writeFile(t, "listen: :1")
	cfg := defaults()
	fs := parse(t, &cfg, "--config", path)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		go Watch(ctx, fs, defaults(), time.Second, func(c valid, err error) {
			got = append(got, fmt.Sprint(c.Listen, " ", err != nil))
		})
		step := func(text string) {
			if text != "" {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
		}
		synctest.Wait()
		step("")
		step("listen: :2")
		step("")
		step("listen: [")
		step("pool: x")
		cancel()
		synctest.Wait()
		if diff := cmp.Diff([]string{":2 false", ":8080 true", ":8080 false"}, got); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	})
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 10 * time.Second: "10s", 10 * time.Minute: "10m", 2 * time.Hour: "2h",
		90 * time.Second: "1m30s", 2*time.Hour + time.Second: "2h0m1s", 250 * time.Millisecond: "250ms",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("formatDuration(%d) = %s, want %s", d, got, want)
		}
	}
}
