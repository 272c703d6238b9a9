// Package wake wakes a goroutine that waits for a channel with room for one value.
package wake

// Once has the receiver of c look once more. It does not wait: where c holds a value, it will look anyway.
func Once(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
