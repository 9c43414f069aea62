//! Sources of the epoll events that the server's loop handles.

/// Source of an epoll event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Wake,
    /// A receiver process has answered.
    Receiver,
    Connection(u64),
    /// A process's pidfd, readable when the process has ended.
    Process(u64),
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        match token {
            Token::Listener => 0,
            Token::Wake => 1,
            Token::Receiver => u64::MAX,
            Token::Connection(number) => number << 1,
            Token::Process(number) => (number << 1) | 1,
        }
    }
}

impl From<u64> for Token {
    /// Decodes a token. Connection and process numbers begin at 1, so words 0 and 1 are free.
    fn from(word: u64) -> Self {
        match (word, word & 1) {
            (0, _) => Self::Listener,
            (1, _) => Self::Wake,
            (u64::MAX, _) => Self::Receiver,
            (_, 0) => Self::Connection(word >> 1),
            _ => Self::Process(word >> 1),
        }
    }
}
