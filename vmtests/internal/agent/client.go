package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"
)

// ErrGone says that the stream to the agent has ended.
var ErrGone = errors.New("the agent is gone")

// cancelPatience is how long a program that was cancelled may take to end; a
// busy guest needs some 100 ms.
const cancelPatience = 10 * time.Second

// A Client asks an agent.
type Client struct {
	stream io.ReadWriteCloser

	mu       sync.Mutex // held while a request is written
	requests *json.Encoder
	last     int
	calls    map[int]*call // nil when the agent is gone
}

// A call is a request that has not been answered.
type call struct {
	output io.Writer
	answer chan reply // gets what ends the request; closed without when the agent is gone
}

// Connect waits until the agent at the other end of the stream is there. Closing
// the stream ends the client.
func Connect(ctx context.Context, stream io.ReadWriteCloser) (*Client, error) {
	hello := &call{answer: make(chan reply, 1)}
	c := &Client{stream: stream, requests: json.NewEncoder(stream), calls: map[int]*call{0: hello}}
	go c.receive()
	if _, err := c.wait(ctx, hello); err != nil {
		return nil, fmt.Errorf("waiting for the agent: %w", err)
	}
	return c, nil
}

// receive passes replies to the calls that wait for them.
func (c *Client) receive() {
	replies := json.NewDecoder(c.stream)
	for {
		var r reply
		if err := replies.Decode(&r); err != nil {
			c.end()
			return
		}
		call := c.find(r)
		switch {
		case call == nil: // nobody waits any more
		case r.Done:
			call.answer <- r
		case call.output != nil:
			call.output.Write(r.Output)
		}
	}
}

func (c *Client) find(r reply) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[r.ID]
	if r.Done {
		delete(c.calls, r.ID)
	}
	return call
}

func (c *Client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		close(call.answer)
	}
	c.calls = nil
}

func (c *Client) wait(ctx context.Context, call *call) (reply, error) {
	select {
	case r, ok := <-call.answer:
		if !ok {
			return reply{}, ErrGone
		}
		if r.Error != "" {
			return r, errors.New(r.Error)
		}
		return r, nil
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// ask sends a request and waits for what ends it.
func (c *Client) ask(ctx context.Context, r request, output io.Writer) (reply, error) {
	call := &call{output: output, answer: make(chan reply, 1)}
	id, err := c.send(r, call)
	if err != nil {
		return reply{}, err
	}
	answer, err := c.wait(ctx, call)
	if ctx.Err() != nil && r.Run != nil {
		c.cancel(id, call)
	}
	return answer, err
}

func (c *Client) send(r request, call *call) (id int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		return 0, ErrGone
	}
	c.last++
	r.ID = c.last
	c.calls[r.ID] = call
	if err := c.requests.Encode(r); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return r.ID, nil
}

// cancel ends a run, and waits for its end so that its output is complete.
func (c *Client) cancel(id int, call *call) {
	c.mu.Lock()
	if c.calls[id] == nil {
		c.mu.Unlock()
		return
	}
	c.requests.Encode(request{ID: id, Cancel: true})
	c.mu.Unlock()
	select {
	case <-call.answer:
	case <-time.After(cancelPatience):
	}
}

// Run runs a program to its end, or kills it when ctx ends. Its output, standard
// and error, goes to output while it runs.
func (c *Client) Run(ctx context.Context, cmd Command, output io.Writer) (code int, err error) {
	r, err := c.ask(ctx, request{Run: &cmd}, output)
	if err != nil {
		return 0, fmt.Errorf("running %q: %w", cmd.Args, err)
	}
	return r.Code, nil
}

// WriteFile writes a file by renaming it into place.
func (c *Client) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	if _, err := c.ask(ctx, request{Write: &File{Path: path, Mode: mode, Data: data}}, nil); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// ReadFile reads a file.
func (c *Client) ReadFile(ctx context.Context, path string) ([]byte, error) {
	r, err := c.ask(ctx, request{Read: path}, nil)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return bytes.Clone(r.Output), nil
}
