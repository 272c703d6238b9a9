// Package drain answers svcproxy drain and undrain on the control socket.
//
// A Drainer drains an endpoint or this host: it has a Keeper remember the drain, waits until the
// kernel sends no new connection there, or routers are told, and says what may still be under way.
// It never waits for connections to end: a client asks for what is left as often as it wants, and
// a leftCounter then looks into connection tracking, once for all who ask at the same time and
// ever less often the longer that takes.
//
// The main types are the Drainer, the Config that it is made of, and the leftCounter.
package drain
