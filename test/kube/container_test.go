package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// container is a process, started again whenever it ends if the pod's policy says so.
type container struct {
	pod     *pod
	spec    corev1.Container
	init    bool
	sidecar bool // a native one: an init container that is kept running
	log     string

	restarts atomic.Int64
	ready    atomic.Bool

	mu     sync.Mutex // guards the rest
	cmd    *exec.Cmd
	done   chan struct{} // of cmd
	over   bool          // no further start
	cancel context.CancelFunc
}

// distroless is the user of Grapevine's own images.
const distroless = 65532

// image returns the binary that stands for an image and its default user; the rest of the image is this machine's /usr.
func (k *kubelet) image(name string) (binary string, user int64, err error) {
	if _, bad := k.broken.Load(name); bad {
		return "", 0, fmt.Errorf("ErrImagePull: %s", name)
	}
	base, _, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	switch base {
	case "grapevine-gateway", "gateway":
		return "gateway", distroless, nil
	case "grapevine-agent", "agent":
		return "agent", distroless, nil
	case "grapevine-injector", "injector":
		return "injector", distroless, nil
	case "grapevine":
		return "grapevine", distroless, nil
	case "vllm-openai", "vllm":
		return "grapevine", 0, nil // an emulated engine
	}
	return "", 0, fmt.Errorf("ErrImagePull: %s: no such image", name)
}

// startContainer prepares root folder, environment and arguments and starts the process.
func (p *pod) startContainer(spec corev1.Container, init bool) (*container, error) {
	c := &container{
		pod: p, spec: spec, init: init, log: filepath.Join(p.dir, "logs", spec.Name+".log"),
		sidecar: init && spec.RestartPolicy != nil && *spec.RestartPolicy == corev1.ContainerRestartPolicyAlways,
	}
	script, args, env, err := c.prepare()
	if err != nil {
		return nil, err
	}
	if err := c.launch(script, args, env); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go c.supervise(ctx, script, args, env)
	go c.probe(ctx)
	return c, nil
}

// prepare returns the shell script that makes the container's root folder and becomes its process.
func (c *container) prepare() (script string, args, env []string, err error) {
	p := c.pod
	binary, user, err := p.k.image(c.spec.Image)
	if err != nil {
		return "", nil, nil, err
	}
	vars, err := c.environment()
	if err != nil {
		return "", nil, nil, err
	}
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	args = append(append([]string{}, c.spec.Command...), c.spec.Args...)
	for i := range args {
		args[i] = expand(args[i], vars)
	}
	switch {
	case binary == "grapevine" && strings.Contains(c.spec.Image, "vllm"):
		args = append([]string{"/app/grapevine"}, engineArgs(args, p.object.Annotations["test/engine-args"])...)
	case len(c.spec.Command) > 0:
		args[0] = "/app/" + filepath.Base(args[0])
	default:
		args = append([]string{"/app/" + binary}, args...)
	}
	group := int64(-1)
	nonRoot, readOnly := false, false
	if s := p.object.Spec.SecurityContext; s != nil {
		user, group = or(s.RunAsUser, user), or(s.RunAsGroup, group)
		nonRoot = or(s.RunAsNonRoot, false)
	}
	if s := c.spec.SecurityContext; s != nil {
		user, group = or(s.RunAsUser, user), or(s.RunAsGroup, group)
		nonRoot, readOnly = or(s.RunAsNonRoot, nonRoot), or(s.ReadOnlyRootFilesystem, false)
	}
	if nonRoot && user == 0 {
		return "", nil, nil, errors.New("CreateContainerConfigError: container has runAsNonRoot and image will run as root")
	}
	if group < 0 {
		group = user // distroless: group of the same number; root: root
	}
	root := filepath.Join(p.dir, "roots", c.spec.Name)
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("set -e\necho %s >/proc/sys/kernel/hostname", p.object.Name)
	line("R=%s\nmkdir -p $R\nmount -t tmpfs -o mode=755 root $R\ncd $R", root)
	line("mkdir -p usr proc dev etc app tmp var run\nchmod 1777 tmp\nln -s usr/lib lib\nln -s usr/lib64 lib64\nln -s usr/bin bin")
	line("mount --rbind /usr usr\nmount -o remount,bind,ro usr\nmount --rbind /proc proc\nmount --rbind /dev dev")
	line("touch app/%[1]s etc/hosts\nmount --bind %[2]s/%[1]s app/%[1]s\nmount --bind %[3]s etc/hosts", binary, p.k.p.tree, p.k.p.file("hosts"))
	line("echo 'hosts: files dns' >etc/nsswitch.conf\necho 'options timeout:1 attempts:1' >etc/resolv.conf\necho 'root:x:0:0::/:\nnonroot:x:65532:65532::/:' >etc/passwd")
	for _, m := range c.spec.VolumeMounts {
		from := filepath.Join(p.volumes[m.Name], expand(m.SubPathExpr, vars), m.SubPath)
		line("if [ -d %[1]s ]; then mkdir -p .%[2]s; else mkdir -p $(dirname .%[2]s); touch .%[2]s; fi\nmount --bind %[1]s .%[2]s", from, m.MountPath)
		if m.ReadOnly {
			line("mount -o remount,bind,ro .%s", m.MountPath)
		}
	}
	if readOnly {
		line("mount -o remount,ro $R")
	}
	line(`exec chroot $R /usr/bin/setpriv --reuid %d --regid %d --groups %s --no-new-privs --inh-caps=-all --bounding-set=-all "$@"`, user, group, strings.Join(p.groups(group), ","))
	return b.String(), args, env, nil
}

func (p *pod) groups(group int64) []string {
	groups := []string{strconv.FormatInt(group, 10)}
	if s := p.object.Spec.SecurityContext; s != nil {
		if s.FSGroup != nil {
			groups = append(groups, strconv.FormatInt(*s.FSGroup, 10))
		}
		for _, g := range s.SupplementalGroups {
			groups = append(groups, strconv.FormatInt(g, 10))
		}
	}
	return groups
}

// launch starts the process once.
func (c *container) launch(script string, args, env []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/usr/bin/env", append([]string{"ip", "netns", "exec", c.pod.ns, "unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", script, "sh"}, args...)...)
	cmd.Env = append(env, "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	c.cmd, c.done = cmd, done
	return nil
}

// supervise starts the process again when it ends, one second later.
func (c *container) supervise(ctx context.Context, script string, args, env []string) {
	for {
		c.mu.Lock()
		done := c.done
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-done:
		}
		c.ready.Store(false)
		if c.init && !c.sidecar && c.status() == 0 || c.pod.object.Spec.RestartPolicy == corev1.RestartPolicyNever && !c.sidecar {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		c.restarts.Add(1)
		if err := c.launch(script, args, env); err != nil {
			return
		}
	}
}

// probe keeps ready up to date, and restarts a process that is not alive.
func (c *container) probe(ctx context.Context) {
	check := func(probe *corev1.Probe) bool { return probe == nil || c.answers(probe.ProbeHandler) }
	pause := func(probe *corev1.Probe, fallback time.Duration) time.Duration {
		if probe == nil || probe.PeriodSeconds == 0 {
			return fallback
		}
		return time.Duration(probe.PeriodSeconds) * time.Second
	}
	failures, next := 0, time.Now()
	for ctx.Err() == nil {
		ok := c.alive() && check(c.spec.ReadinessProbe)
		c.ready.Store(ok)
		wait := 100 * time.Millisecond
		if ok && c.spec.ReadinessProbe != nil {
			wait = pause(c.spec.ReadinessProbe, wait)
		}
		if live := c.spec.LivenessProbe; live != nil && c.alive() && time.Now().After(next) {
			next = time.Now().Add(pause(live, 10*time.Second))
			if check(live) {
				failures = 0
			} else if failures++; failures >= int(max(1, live.FailureThreshold)) {
				c.signal(syscall.SIGKILL)
				failures = 0
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// answers does one check of a probe. A gRPC probe is taken for a TCP one.
func (c *container) answers(h corev1.ProbeHandler) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	switch {
	case h.HTTPGet != nil:
		scheme := strings.ToLower(string(h.HTTPGet.Scheme))
		if scheme == "" {
			scheme = "http"
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(c.pod.ip, c.port(h.HTTPGet.Port))+h.HTTPGet.Path, nil)
		if err != nil {
			return false
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // as the kubelet does
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode < 400
	case h.TCPSocket != nil:
		return c.dials(ctx, c.port(h.TCPSocket.Port))
	case h.GRPC != nil:
		return c.dials(ctx, strconv.Itoa(int(h.GRPC.Port)))
	}
	return true // exec: not done
}

func (c *container) dials(ctx context.Context, port string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(c.pod.ip, port))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// port resolves a named port.
func (c *container) port(p intstr.IntOrString) string {
	if p.Type == intstr.String {
		for _, named := range c.spec.Ports {
			if named.Name == p.StrVal {
				return strconv.Itoa(int(named.ContainerPort))
			}
		}
	}
	return p.String()
}

// alive says whether the process runs.
func (c *container) alive() bool { return !c.exited() }

// exited says whether the process has ended.
func (c *container) exited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// status is the exit status of a process that has ended.
func (c *container) status() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cmd.ProcessState.ExitCode()
}

// pid of the process.
func (c *container) pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cmd.Process.Pid
}

func (c *container) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.cmd.Process.Signal(s)
}

// finish ends the process for good.
func (c *container) finish(s syscall.Signal, grace time.Duration) {
	c.mu.Lock()
	c.over = true
	done := c.done
	c.mu.Unlock()
	c.signal(s)
	select {
	case <-done:
	case <-time.After(grace):
		c.signal(syscall.SIGKILL)
		<-done
	}
	c.cancel()
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
