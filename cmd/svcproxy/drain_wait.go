package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier/conditions"
)

const (
	// waitInterval is how often drain --wait looks.
	waitInterval = time.Second

	// waitPatience is for how long a daemon may not answer meanwhile, as it is started again.
	waitPatience = 2 * time.Minute

	// waitClosing is how long after the deadline connections may still be there.
	waitClosing = 10 * time.Second

	// waitEmpty is how many looks in a row have to find nothing: a connection that was on its
	// way to the endpoint when it was drained is seen once it is answered.
	waitEmpty = 2
)

// A drainWait is a drain --wait.
type drainWait struct {
	*program
	target             conditions.DrainTarget
	ask                func(*control.Remaining) error
	interval, patience time.Duration

	answered time.Time // last
	text     string    // of the line printed last
	looked   time.Time // what was answered last
	empty    int       // looks in a row that found nothing
}

// run prints what is left until nothing is.
func (w *drainWait) run(ctx context.Context) error {
	w.answered = time.Now()
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for {
		over, err := w.poll(time.Now())
		if ctx.Err() != nil {
			return w.end(fmt.Errorf("interrupted: %s stays drained", control.TargetName(w.target)))
		}
		if over || err != nil {
			return w.end(err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// poll looks once, and reports whether nothing is left to wait for.
func (w *drainWait) poll(now time.Time) (over bool, err error) {
	var left control.Remaining
	switch err := w.ask(&left); {
	case errors.Is(err, control.ErrUnreachable) && now.Sub(w.answered) < w.patience:
		w.empty = 0
		return false, w.print("not known: svcproxy does not answer")
	case err != nil:
		return false, reached(err)
	case !left.Drained:
		return false, fmt.Errorf("%s is not drained any more", control.TargetName(w.target))
	}
	w.answered = now
	switch {
	case !left.None():
		w.empty = 0
	case !left.Looked.Equal(w.looked): // not the same look again
		w.empty++
	}
	w.looked = left.Looked
	if err := w.print(left.String()); err != nil || w.empty >= waitEmpty {
		return true, err
	}
	if !left.Until.IsZero() && now.After(left.Until.Add(waitClosing)) && left.Unknown == "" && w.empty == 0 {
		return false, fmt.Errorf("the time is over, and these connections go on: %s", &left)
	}
	return false, nil
}

// print prints what is left where that is new; on a terminal, over the line before.
func (w *drainWait) print(text string) error {
	if text == w.text {
		return nil
	}
	w.text = text
	format := "left: %s\n"
	if size, is := terminalSize(w.stdout); is {
		format, text = "\r\x1b[Kleft: %s", control.Cut(text, int(size.Col)-len("left: ")-1)
	}
	_, err := fmt.Fprintf(w.stdout, format, text)
	return err
}

// end ends the line of a terminal.
func (w *drainWait) end(err error) error {
	if isTerminal(w.stdout) && w.text != "" {
		fmt.Fprintln(w.stdout)
	}
	return err
}
