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

// A target is what is called.
type target interface {
	// call calls it for changes, until ctx ends at the latest. The text of an error is printable and short.
	call(ctx context.Context, list []changes.Change) error

	most() int // changes of one call
	close()
}

// targetOf returns what settings name; nil: nothing.
func (n *Notifier) targetOf(s configs.Notify) target {
	switch {
	case len(s.Command) > 0:
		return &command{n: n, args: s.Command}
	case s.URL != "":
		return newPost(n, s.URL)
	}
	return nil
}

// maxValue is how long a value in the environment of a program is, in characters. Names of files are at most 4096 bytes.
const maxValue = 4096

// maxError is how long an error is, in characters.
const maxError = 200

// running are the programs of notifications of this process: one, and one that was killed and is about to end.
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
		return fmt.Errorf("it is not known who can change %s: %s", read.SettingsName, source.Clip(err.Error(), maxError))
	}
	if why != "" {
		return fmt.Errorf("its program does not run: %s", source.Clip(why, maxError))
	}
	if err := running.Run(ctx, program.Command{Args: c.args, Env: environment(c.n.Node, &list[0])}); err != nil {
		return fmt.Errorf("%s: %s", source.Excerpt(c.args[0]), source.Clip(err.Error(), maxError))
	}
	return nil
}

// environment says what has changed. Values come from files and from endpoints: what cannot be printed in them is written
// as Go does.
func environment(node string, ch *changes.Change) (env []string) {
	for _, v := range []struct{ name, value string }{
		{"NODE", node}, {"KIND", ch.Kind}, {"SERVICE", ch.Service}, {"NAME", ch.Name},
		{"STATE", ch.State}, {"WAS", ch.Was}, {"REASON", ch.Reason}, {"TIME", ch.At.UTC().Format(time.RFC3339)},
	} {
		env = append(env, "SVCPROXY_"+v.name+"="+source.Clip(v.value, maxValue))
	}
	return env
}

// A post is a URL that changes are posted to.
type post struct {
	n      *Notifier
	url    string
	client *http.Client
}

// Bounds of what a server answers.
const (
	maxHeader = 64 << 10
	maxBody   = 64 << 10 // that is read, so that the connection can be used again
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

// A message is the body of a request.
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

// withoutURL returns why a request failed. The URL may have a secret.
func withoutURL(err error) error {
	if u, is := errors.AsType[*url.Error](err); is {
		if u.Timeout() {
			return errors.New("it timed out")
		}
		return u.Err
	}
	return err
}
