package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// images are the parts that have one, with the ports that their recipes name.
func images() map[string][]string {
	gossip := []string{"7946/tcp", "7946/udp"}
	return map[string][]string{
		"gateway":   append([]string{"8080", "9002", "9003", "9090"}, gossip...),
		"agent":     append([]string{"9464"}, gossip...),
		"injector":  {"9443", "8081"},
		"grapevine": nil,
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestContainerfiles: nothing runs as root, everything is labelled and named, and the last stage holds what rootfs.sh made and no more.
func TestContainerfiles(t *testing.T) {
	files, err := filepath.Glob("images/*.Containerfile")
	if err != nil || len(files) != len(images()) {
		t.Fatalf("recipes %v, %v; want %d", files, err, len(images()))
	}
	goVersion := regexp.MustCompile(`(?m)^go ([0-9]+\.[0-9]+)`).FindStringSubmatch(read(t, "../go.mod"))[1]
	for part, ports := range images() {
		t.Run(part, func(t *testing.T) {
			text := read(t, "images/"+part+".Containerfile")
			for _, want := range []string{
				"ARG GO=docker.io/library/golang:" + goVersion + ".", // and a patch release
				"-bookworm\n",
				"ARG BASE=gcr.io/distroless/static-debian12:nonroot\n",
				"deploy/images/rootfs.sh " + part + " /out\n",
				"\nUSER 65532:65532\n",
				`ENTRYPOINT ["/usr/local/bin/` + part + `"]`,
			} {
				if !strings.Contains(text, want) {
					t.Errorf("no %q", want)
				}
			}
			for _, label := range []string{"title", "description", "source", "licenses", "version", "revision"} {
				if !strings.Contains(text, "org.opencontainers.image."+label+"=") {
					t.Errorf("no label %s", label)
				}
			}
			_, last, _ := strings.Cut(text, "FROM ${BASE}")
			if copies := regexp.MustCompile(`(?m)^(COPY|ADD|RUN) .*$`).FindAllString(last, -1); !slices.Equal(copies, []string{"COPY --from=build /out/ /"}) {
				t.Errorf("the last stage does %q", copies)
			}
			var exposed []string
			if m := regexp.MustCompile(`(?m)^EXPOSE (.*)$`).FindStringSubmatch(last); m != nil {
				exposed = strings.Fields(m[1])
			}
			if !slices.Equal(exposed, ports) {
				t.Errorf("ports %v, want %v", exposed, ports)
			}
		})
	}
	for _, flag := range []string{"-trimpath", "-buildvcs=false", "SOURCE_DATE_EPOCH"} {
		if !strings.Contains(read(t, "images/rootfs.sh"), flag) {
			t.Errorf("rootfs.sh without %s: the same source gives other bytes", flag)
		}
	}
}

// TestImagesBuilders gives scripts/images.sh builders that say only what they are asked to do.
func TestImagesBuilders(t *testing.T) {
	bash := tool(t, "bash", "install it")
	tests := []struct {
		name     string
		programs map[string]string // name → what it does
		args     []string
		want     []string
		code     int
	}{
		{"docker with buildx", map[string]string{"docker": "exit 0"}, []string{"--print", "gateway"}, []string{"docker buildx build --load --file deploy/images/gateway.Containerfile", "VERSION=v9", "--tag grapevine/gateway:v9 ."}, 0},
		{"docker without", map[string]string{"docker": `[ "$1" != buildx ]`}, []string{"--print", "gateway"}, []string{"docker build --file"}, 0},
		{"docker without a daemon", map[string]string{"docker": "exit 1", "podman": "exit 0"}, []string{"--print", "gateway"}, []string{"podman build --file"}, 0},
		{"buildah", map[string]string{"buildah": "exit 0"}, []string{"--print", "--push", "--registry", "r.example/g", "--tag", "v2", "agent", "injector"},
			[]string{"buildah build --file deploy/images/agent.Containerfile", "buildah push r.example/g/agent:v2", "buildah push r.example/g/injector:v2", "--set image.registry=r.example/g --set image.tag=v2"}, 0},
		{"no builder", nil, []string{"--print"}, []string{"no builder here", "--rootfs"}, 3},
		{"no such image", nil, []string{"gatway"}, []string{"no image gatway"}, 2},
		{"no such option", nil, []string{"--pull"}, []string{"no option --pull"}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"dirname", "sed", "git"} {
				if err := os.Symlink(tool(t, name, "install it"), filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			for name, does := range tt.programs {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("#!"+bash+"\n"+does+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command(bash, append([]string{"../scripts/images.sh"}, tt.args...)...)
			cmd.Env = []string{"PATH=" + dir, "VERSION=v9"}
			out, _ := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != tt.code {
				t.Errorf("exit code %d, want %d", cmd.ProcessState.ExitCode(), tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%s\ndoes not say %q", out, want)
				}
			}
		})
	}
}
