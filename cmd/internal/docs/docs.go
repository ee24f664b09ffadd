// Package docs renders the pages of docs/ that follow from the code: every setting and every metric. Its test fails when a
// page is not what the code says; `go test ./cmd/internal/docs -update` writes them anew.
package docs

import (
	"strings"

	"github.com/grapevine-llm/grapevine/agent"
	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/cmd/internal/gatewaycmd"
	"github.com/grapevine-llm/grapevine/deploy/inject/webhook"
)

const configurationHead = "# Configuration\n\n" + generated + `
Agent and gateway are configured in the same way. A setting has one name in the file, one flag and one environment variable; they are
resolved in the order defaults, file, environment, flags, and a later one replaces an earlier one as a whole. The file is YAML, given by
` + "`--config FILE` or `GRAPEVINE_CONFIG`" + `:

` + "```yaml" + `
endpoints: [http://10.0.0.5:8000, http://10.0.0.6:8000]
policy: {prefix: 90, round-robin: 10}
hold:
  max-age: 5s
gossip:
  key-file: /etc/grapevine/keys
  label: blue
` + "```" + `

- ` + "`--print-config`" + ` prints what was resolved, as a file with a comment over each setting, and ends. ` + "`--version` and `--help`" + ` do what they say.
- Lists are ` + "`a,b`" + ` or a repeated flag; maps are ` + "`a=1,b=2`" + `; durations are written as ` + "`250ms`, `10s`, `1m`" + `.
- Every fault is reported at once, with the field, the value and what to do; the exit code is then 2. An unknown key is a fault.
- The gateway looks at its file every second and takes over ` + "`policy`, `holding` and `speculating`" + ` while it runs; everything else needs a
  restart. A file with a fault changes nothing and is logged. The gossip key file is read again every five seconds by both.

`

// Configuration is docs/configuration.md.
func Configuration() string {
	var b strings.Builder
	b.WriteString(configurationHead)
	b.WriteString("## Gateway\n\n`gateway` and `grapevine gateway` are the same program.\n\n")
	b.WriteString(config.Markdown(gatewaycmd.Default()))
	b.WriteString("\n## Agent\n\n`agent` and `grapevine agent` are the same program, but for the flag `--supervise` of `agent`: it starts the agent again whenever it\nends, after a pause of one second that doubles up to 30, so that the container of a sidecar goes on and its pod stays ready. Only\n`engine` has no default.\n\n")
	b.WriteString(config.Markdown(agent.Default()))
	b.WriteString("\n## Injector\n\n`injector` is the webhook on Kubernetes. `grapevine inject` has the settings of what is injected, and `--file`, `--namespace-label`,\n`--patch` and `--json`.\n\n")
	b.WriteString(config.Markdown(webhook.Default()))
	return b.String()
}

const generated = "<!-- Written by `go test ./cmd/internal/docs -update`. -->\n"
