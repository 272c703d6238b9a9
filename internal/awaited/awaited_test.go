package awaited_test

import (
	"context"
	"testing"

	"svcproxy.dev/svcproxy/internal/awaited"
)

func TestRecordNamesWhatIsAwaited(t *testing.T) {
	ctx, record := awaited.Watch(t.Context())
	expect := func(want string) {
		t.Helper()
		if got := record.Latest(); got.For+got.Detail != want || got.Since.IsZero() != (want == "") {
			t.Errorf("Latest = %+v, want %q", got, want)
		}
	}
	begin := func(ctx context.Context, what string) func() {
		return awaited.Begin(ctx, what, nil)
	}
	expect("")
	endLock := begin(ctx, "the lock")
	expect("the lock")
	endProgram := begin(ctx, "a program")
	expect("a program")
	endDetailed := awaited.Begin(ctx, "a program", func() string { return " of root" })
	expect("a program of root")
	endDetailed()
	endLock() // in any order
	expect("a program")
	begin(t.Context(), "what nobody watches")()
	endProgram()
	expect("")
}
