package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/grapevine-llm/grapevine/test/cluster"
)

var errNoNginx = errors.New("nginx is not installed (apt-get install nginx-light)")

// nginxConfig is a bare proxy over engines: one process, connections kept, bodies in memory,
// answers passed on as they come.
func nginxConfig(port int, dir string, engines []string) string {
	var servers strings.Builder
	for _, e := range engines {
		fmt.Fprintf(&servers, "    server %s;\n", strings.TrimPrefix(e, "http://"))
	}
	return fmt.Sprintf(`daemon off;
master_process off;
pid %[2]s/nginx.pid;
error_log %[2]s/nginx.error.log warn;
events { worker_connections 1024; }
http {
  access_log off;
  client_max_body_size 64m;
  client_body_buffer_size 16m;
  client_body_temp_path %[2]s/body;
  proxy_temp_path %[2]s/proxy;
  fastcgi_temp_path %[2]s/fastcgi;
  uwsgi_temp_path %[2]s/uwsgi;
  scgi_temp_path %[2]s/scgi;
  keepalive_requests 1000000;
  upstream engines {
%[3]s    keepalive 64;
    keepalive_requests 1000000;
  }
  server {
    listen 127.0.0.1:%[1]d;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }
  }
}
`, port, dir, servers.String())
}

// startNginx returns errNoNginx where there is none.
func startNginx(ports *cluster.Ports, dir string, engines []string) (p *cluster.Process, url string, err error) {
	exe, err := exec.LookPath("nginx")
	if err != nil {
		if exe = "/usr/sbin/nginx"; !isFile(exe) { // not on everybody's path
			return nil, "", errNoNginx
		}
	}
	port, err := ports.Take(1)
	if err != nil {
		return nil, "", err
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, []byte(nginxConfig(port[0], dir, engines)), 0o600); err != nil {
		return nil, "", err
	}
	p, err = cluster.StartProcess(exe, "nginx", dir, "-c", conf, "-e", filepath.Join(dir, "nginx.error.log"))
	return p, fmt.Sprintf("http://127.0.0.1:%d", port[0]), err
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
