package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/program"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A target is the program or URL that is called.
type target interface {
	// call calls the target for changes. It returns when ctx ends, if not earlier. Its errors are printable and short.
	call(ctx context.Context, list []changes.Change) error

	most() int // maximum number of changes in one call
	close()
}

// targetOf returns the target that the settings name, or nil.
func (n *Notifier) targetOf(s configs.Notify) target {
	switch {
	case len(s.Command) > 0:
		return &command{n: n, args: s.Command}
	case s.URL != "":
		return newPost(n, s.URL)
	}
	return nil
}

// maxValue is the maximum length of a value in the environment of a program, in characters. Paths have up to 4096 bytes.
const maxValue = 4096

// maxError is the maximum length of an error, in characters.
const maxError = 200

// running has room for one running program, and one that was killed and has not ended yet.
var running = program.NewGroup(2, 1)

// A command is a program that runs for one change.
type command struct {
	n    *Notifier
	args []string
}

func (c *command) most() int { return 1 }
func (c *command) close()    {}

func (c *command) call(ctx context.Context, list []changes.Change) error {
	why, err := c.n.asker.Writer(c.n.Settings)
	if err != nil {
		return fmt.Errorf("checking who can change %s: %s", read.SettingsName, source.Clip(err.Error(), maxError))
	}
	if why != "" {
		return fmt.Errorf("its program does not run: %s", source.Clip(why, maxError))
	}
	if err := running.Run(ctx, program.Command{Args: c.args, Env: environment(c.n.Node, &list[0])}); err != nil {
		return fmt.Errorf("%s: %s", source.Excerpt(c.args[0]), source.Clip(err.Error(), maxError))
	}
	return nil
}

// environment returns the environment variables that describe a change. Unprintable characters are escaped as in Go, because
// values come from files and endpoints.
func environment(node string, ch *changes.Change) (env []string) {
	for _, v := range []struct{ name, value string }{
		{"NODE", node}, {"KIND", ch.Kind}, {"SERVICE", ch.Service}, {"NAME", ch.Name},
		{"STATE", ch.State}, {"WAS", ch.Was}, {"REASON", ch.Reason}, {"TIME", ch.At.UTC().Format(time.RFC3339)},
	} {
		env = append(env, "SVCPROXY_"+v.name+"="+source.Clip(v.value, maxValue))
	}
	return env
}

// A post is a target that posts changes to a URL.
type post struct {
	n      *Notifier
	url    string
	client *http.Client
}

// Bounds of an answer.
const (
	maxHeader = 64 << 10
	maxBody   = 64 << 10 // bytes that are read and discarded, so that the connection can be reused
	idleTime  = time.Minute
)

func newPost(n *Notifier, to string) *post {
	return &post{n, to, &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: maxHeader, MaxIdleConns: 1, IdleConnTimeout: idleTime, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (p *post) most() int { return perPost }
func (p *post) close()    { p.client.CloseIdleConnections() }

// A message is the JSON body of a request.
type message struct {
	Node    string           `json:"node"`
	Changes []changes.Change `json:"changes"`
}

func (p *post) call(ctx context.Context, list []changes.Change) error {
	body, err := json.Marshal(message{p.n.Node, list})
	if err != nil {
		return fmt.Errorf("writing changes: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("making a request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "svcproxy/"+p.n.Version)
	resp, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("posting to its url: %s", source.Clip(withoutURL(err).Error(), maxError))
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
	switch {
	case resp.StatusCode/100 == 3:
		return fmt.Errorf("posting to its url: the answer is a redirection (%d), which is not followed", resp.StatusCode)
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("posting to its url: the answer has status %d", resp.StatusCode)
	}
	return nil
}

// withoutURL returns the cause of a failed request without the URL, which may contain a secret.
func withoutURL(err error) error {
	if u, is := errors.AsType[*url.Error](err); is {
		if u.Timeout() {
			return errors.New("it timed out")
		}
		return u.Err
	}
	return err
}
